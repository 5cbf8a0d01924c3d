// <json-view data-json='…' data-shown="{shown} of {total} shown" data-show-all="Show all">: a tree that folds. Everything goes through textContent, so a body is never HTML.
const ENTRIES_FIRST = 1000;
class Exact {
  constructor(source) { this.source = source; }
}
// A number that JavaScript would round stays as it was written.
const exact = (_, value, context) => (typeof value === "number" && context?.source && String(value) !== context.source ? new Exact(context.source) : value);

class JsonView extends HTMLElement {
  static observedAttributes = ["data-json"];
  connectedCallback() { this.#draw(); }
  attributeChangedCallback() { if (this.isConnected) this.#draw(); }
  #draw() {
    let value;
    try { value = JSON.parse(this.dataset.json, exact); } catch { this.textContent = this.dataset.json; return; }
    this.replaceChildren(this.#node(null, value, 0));
  }
  #node(key, value, depth) {
    const isTree = value !== null && typeof value === "object" && !(value instanceof Exact);
    const box = document.createElement(isTree ? "details" : "div");
    const line = isTree ? document.createElement("summary") : box;
    if (key !== null) line.append(this.#text("json-key", `${key}: `));
    if (!isTree) {
      line.append(this.#text(typeof value === "string" ? "json-string" : "json-other", value instanceof Exact ? value.source : JSON.stringify(value)));
      return box;
    }
    const entries = Array.isArray(value) ? value.map((one, index) => [index, one]) : Object.entries(value);
    line.append(this.#text("faint", Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`));
    box.append(line);
    const fill = () => { if (box.childElementCount === 1) this.#fill(box, entries, depth + 1); };
    box.open = depth < 3;
    if (box.open) fill();
    box.addEventListener("toggle", () => { if (box.open) fill(); });
    return box;
  }
  #fill(box, entries, depth) {
    const nodes = (some) => some.map(([name, one]) => this.#node(name, one, depth));
    box.append(...nodes(entries.slice(0, ENTRIES_FIRST)));
    if (entries.length <= ENTRIES_FIRST) return;
    const rest = document.createElement("p");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "button";
    button.textContent = this.dataset.showAll;
    button.addEventListener("click", () => rest.replaceWith(...nodes(entries.slice(ENTRIES_FIRST))));
    const shown = this.dataset.shown.replace("{shown}", ENTRIES_FIRST.toLocaleString("en")).replace("{total}", entries.length.toLocaleString("en"));
    rest.className = "json-rest";
    rest.append(this.#text("soft", shown), button);
    box.append(rest);
  }
  #text(name, text) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    return part;
  }
}
customElements.define("json-view", JsonView);
