// Host of the live view on a plain page: what a notebook's widget model does there, and where the key comes from.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
history.replaceState(null, "", location.pathname); // neither a screenshot nor the history shows the key
const kept = sessionStorage; // of this tab alone, so that a reload needs no link
if (key) kept.setItem("key", key);
const url = new URL("socket", location.href.replace(/^http/, "ws"));
const listeners = new Set();
const model = {
  get: (name) => (name === "address" ? location.href.split("#")[0] : undefined),
  on: (_, listener) => listeners.add(listener),
  off: (_, listener) => listeners.delete(listener),
  send: () => queueMicrotask(() => {
    const known = kept.getItem("key");
    const answer = known ? { contact: { urls: [url.href], key: known } } : { refused: "the link has no key" };
    for (const listener of listeners) listener(answer);
  }),
};
const trouble = document.getElementById("trouble");
import("./live.js").then(
  (module) => {
    trouble.remove();
    module.default.render({ model, el: document.getElementById("view") });
  },
  () => {
    trouble.textContent =
      "This installation of Farandole has no live view: its wheel was built where neither Node nor the npm registry " +
      "could be reached. The run is recorded all the same; look at it with: farandole runs plot FOLDER";
  },
);
