// <live-tail data-src="…">: messages as they arrive, the newest first. The server bounds how many come in a
// second; this element bounds how many stay, and says what was left out. The rows are HTML of our own server.
class LiveTail extends HTMLElement {
  #source = null;
  #seen = 0;
  #leftOut = 0;

  connectedCallback() {
    this.querySelector("[data-tail-toggle]").addEventListener("click", () => (this.#source ? this.#pause() : this.#run()));
    this.#run();
  }
  disconnectedCallback() { this.#source?.close(); }

  #run() {
    const source = new EventSource(this.dataset.src);
    this.#source = source;
    source.addEventListener("open", () => this.#show("running", this.dataset.running));
    source.addEventListener("rows", (event) => this.#add(event.data));
    source.addEventListener("left-out", (event) => this.#count(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => this.#show("lost", JSON.parse(event.data).text));
    source.addEventListener("end", (event) => { this.#pause(); this.#show("paused", JSON.parse(event.data).text); });
    source.onerror = () => { if (this.#source) this.#show("lost", this.dataset.lost); };
    this.#button(true);
  }
  #pause() {
    this.#source?.close();
    this.#source = null;
    this.#button(false);
    this.#show("paused", this.dataset.paused);
  }
  #button(isRunning) {
    const button = this.querySelector("[data-tail-toggle]");
    button.setAttribute("aria-pressed", String(isRunning));
    button.querySelector("span").textContent = isRunning ? this.dataset.pause : this.dataset.resume;
    const use = button.querySelector("use");
    use.setAttribute("href", use.getAttribute("href").replace(/#.*/, isRunning ? "#pause" : "#play"));
  }
  #show(state, text) {
    this.dataset.state = state;
    this.querySelector("[data-tail-state]").textContent = text;
    const dot = this.querySelector(".dot");
    dot.classList.toggle("dot--live", state === "running");
    dot.classList.toggle("dot--lost", state === "lost");
  }
  #add(html) {
    if (this.dataset.state !== "running") this.#show("running", this.dataset.running);
    const rows = this.querySelector("[data-tail-rows]");
    const holder = document.createElement("template");
    holder.innerHTML = html;
    const fresh = [...holder.content.querySelectorAll("tr")];
    rows.prepend(...fresh);
    for (const row of fresh) window.htmx?.process(row);
    while (rows.childElementCount > Number(this.dataset.rowsMax)) rows.lastElementChild.remove();
    this.#seen += fresh.length;
    this.querySelector("[data-tail-count]").textContent = this.dataset.shown.replace("{count}", this.#seen.toLocaleString());
  }
  #count({ count, silent }) {
    this.#leftOut += count;
    const parts = [];
    if (this.#leftOut) parts.push(this.dataset.leftOut.replace("{count}", this.#leftOut.toLocaleString()));
    if (silent.length) parts.push(this.dataset.silent.replace("{brokers}", silent.join(", ")));
    this.querySelector("[data-tail-left-out]").textContent = parts.join(" ");
  }
}
customElements.define("live-tail", LiveTail);
