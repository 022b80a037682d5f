// Elements, made without markup: what comes from a training is text, and never becomes anything else.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value != null) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

export function show(element, visible) {
  if (element.hasAttribute("hidden") === Boolean(visible)) element.toggleAttribute("hidden", !visible); // SVG has no property
}

export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// What a reader has chosen, for as long as the tab is open; where a frame may keep nothing, it is forgotten.
export function kept(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(`farandole-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    sessionStorage.setItem(`farandole-${name}`, JSON.stringify(value));
  } catch {
    // it is chosen all the same
  }
}
