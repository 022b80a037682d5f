// Rows of charts: whole ones, as even as can be, with most room for the first chart.

const LEAST = 360; // pixels of a chart
const GAP = 12;

// What part of a row each of so many charts has, in order.
export function shares(count, width) {
  const fits = Math.max(1, Math.floor((width + GAP) / (LEAST + GAP)));
  const beside = fits > 2 && count > 1 && count !== 3 ? 1 : 0; // a third one would have a row to itself
  const parts = [1 - beside / fits, ...Array(beside).fill(1 / fits)];
  const left = count - parts.length;
  const rows = Math.ceil(left / fits);
  for (let row = 0; row < rows; row++) {
    const here = Math.floor(left / rows) + (row < left % rows);
    parts.push(...Array(here).fill(1 / here));
  }
  return parts;
}

export function layOut(grid) {
  const parts = shares(grid.children.length, grid.clientWidth);
  [...grid.children].forEach((each, i) => { each.style.flexBasis = `calc(${100 * parts[i]}% - ${GAP}px)`; });
}
