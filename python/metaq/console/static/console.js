// Behaviour that all pages share: live state, drawer, dialogs, palette, keys, favourites, copy buttons.
import "./chart.js";
import "./json-view.js";
import "./live-tail.js";
import { followRequests } from "./loading.js";
import { span } from "./units.js";
import "./zone.js";

const body = document.body;
const base = document.documentElement.dataset.base;
const byId = (id) => document.getElementById(id);

// Live state: a tick says that the cluster was polled. Without one for a while, everything on the page is old.
const OLD_S = 30;
let lastTick = 0;
let lastEvent = Date.now();
const dot = byId("live-dot");
const liveText = byId("live-text");
function showLive() {
  if (!dot) return;
  const silence = Date.now() - lastEvent;
  const lost = silence > 45000 || connectionLost;
  // The stream may have been opened before this script ran.
  isConnected ||= Boolean(byId("ticks")._htmx?.sse);
  dot.classList.toggle("dot--live", !lost && isConnected);
  dot.classList.toggle("dot--lost", lost);
  body.classList.toggle("is-lost", lost);
  byId("live")?.classList.toggle("is-stale", lost);
  if (lost) liveText.textContent = body.dataset.lost;
  else if (isConnected) {
    const age = Math.max(0, Math.round((Date.now() - lastTick) / 1000));
    const ago = lastTick ? body.dataset.ago.replace("#", span(age * 1000)) : "";
    // Screen readers announce each change of the text, so it changes only if the figures are old.
    liveText.textContent = lastTick && age >= OLD_S ? body.dataset.ago.replace("#", span((age - (age % 10)) * 1000)) : body.dataset.live;
    dot.parentElement.title = ago;
  }
}
let connectionLost = false;
let isConnected = false;
body.addEventListener("tick", () => { isConnected = true; lastTick = lastEvent = Date.now(); connectionLost = false; showLive(); });
for (const name of ["htmx:sse:after:connection", "alive"]) body.addEventListener(name, () => { isConnected = true; lastEvent = Date.now(); connectionLost = false; showLive(); });
body.addEventListener("htmx:sse:error", () => { connectionLost = true; showLive(); });
showLive();
if (dot) setInterval(showLive, 1000);

// Drawer: details beside the list, with an address of their own.
const drawer = byId("drawer");
let drawerFrom = null;
function openDrawer() {
  if (drawer.hidden) drawerFrom = document.activeElement;
  drawer.hidden = false;
  drawer.scrollTop = 0;
  drawer.focus();
}
function closeDrawer() {
  if (!drawer || drawer.hidden) return;
  drawer.hidden = true;
  drawer.replaceChildren();
  if (drawer.dataset.back) history.pushState(null, "", drawer.dataset.back);
  delete drawer.dataset.back;
  drawerFrom?.focus?.();
}
window.addEventListener("popstate", () => location.reload());

const dialog = byId("dialog");
body.addEventListener("htmx:before:request", (event) => {
  const source = event.detail?.ctx?.sourceElement;
  if (source?.matches?.("[data-drawer]") && !drawer.dataset.back) drawer.dataset.back = location.href;
});
body.addEventListener("htmx:after:swap", (event) => {
  const target = event.detail?.ctx?.target ?? event.target;
  if (target?.id === "drawer") {
    // htmx leaves the history alone: its own would fetch pages instead of loading them.
    const address = event.detail?.ctx?.sourceElement?.href;
    if (address && address !== location.href) history.pushState(null, "", address);
    openDrawer();
  }
  if (target?.id === "dialog-body") {
    openDialog();
    dialog.querySelector("input:not([type=hidden]), select, textarea, button")?.focus();
  }
  showFavourites();
  showLive();
});

function openDialog() {
  byId("palette").close();
  if (!dialog.open) dialog.showModal();
}
if (drawer) {
  followRequests((target) => (target === drawer ? openDrawer() : openDialog()), (target) => {
    if (target === drawer) closeDrawer();
    else dialog.close();
    say(body.dataset.lost);
  });
}

function say(text) {
  const toast = byId("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { toast.hidden = true; }, 2000);
}
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure origin there is no clipboard: select the text instead.
    const area = document.createElement("textarea");
    area.value = text;
    (dialog?.open ? dialog : body).append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(body.dataset.copied);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy], [data-close], [data-palette], [data-menu], [data-star], [data-close-drawer], [data-select-all]");
  if (!button) {
    if (!event.target.closest("#sidebar")) byId("sidebar")?.classList.remove("is-open");
    return;
  }
  if (button.dataset.copy !== undefined) copy(button.dataset.copy);
  if (button.dataset.close !== undefined) {
    if (dialog.open) dialog.close();
    else location.href = base + "/";
  }
  if (button.dataset.palette !== undefined) openPalette();
  if (button.dataset.closeDrawer !== undefined) closeDrawer();
  if (button.dataset.menu !== undefined) {
    const open = byId("sidebar").classList.toggle("is-open");
    button.setAttribute("aria-expanded", String(open));
  }
  if (button.dataset.star !== undefined) toggleFavourite(button);
  if (button.dataset.selectAll !== undefined) {
    for (const box of document.querySelectorAll(`input[name="${button.dataset.selectAll}"]`)) box.checked = button.checked;
    button.dispatchEvent(new CustomEvent("selection", { bubbles: true }));
  }
});

// A preview shows the fields as they were: when one changes, it goes.
document.addEventListener("input", (event) => {
  if (event.target.closest("#action-form")) byId("action-effect")?.replaceChildren();
});

// A usual time range, up to now.
document.addEventListener("click", (event) => {
  const { form, dataset } = event.target.closest("[data-span]") ?? {};
  if (!form) return;
  form.elements.from.value = dataset.span;
  form.elements.to.value = "";
  form.requestSubmit();
});

// A field beside a choice, such as the time of a reset, makes that choice.
document.addEventListener("input", (event) => {
  const choice = event.target.dataset.chooses;
  const radio = choice && event.target.form?.querySelector(`input[type="radio"][value="${CSS.escape(choice)}"]`);
  if (radio) radio.checked = true;
});

// Favourites live in this browser.
const STORE = "metaq-favourites";
function favourites() {
  try { return JSON.parse(localStorage.getItem(STORE)) ?? []; } catch { return []; }
}
function toggleFavourite(button) {
  const { star: kind, name, href } = button.dataset;
  const kept = favourites().filter((one) => one.href !== href);
  if (kept.length === favourites().length) kept.push({ kind, name, href });
  localStorage.setItem(STORE, JSON.stringify(kept.slice(-30)));
  showFavourites();
}
function showFavourites() {
  const box = byId("favourites");
  if (!box) return;
  const all = favourites();
  const list = box.querySelector("ul");
  list.replaceChildren(...all.map((one) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.className = "nav__link";
    link.href = one.href;
    const text = document.createElement("span");
    text.textContent = one.name;
    link.append(text);
    item.append(link);
    return item;
  }));
  box.hidden = all.length === 0;
  for (const button of document.querySelectorAll("[data-star]")) {
    button.setAttribute("aria-pressed", String(all.some((one) => one.href === button.dataset.href)));
  }
}
showFavourites();

// Palette
const palette = byId("palette");
const paletteInput = byId("palette-input");
function openPalette() {
  if (palette.open) return;
  palette.showModal();
  paletteInput.value = "";
  paletteInput.focus();
  paletteInput.dispatchEvent(new CustomEvent("open"));
}
function movePalette(step) {
  const items = [...palette.querySelectorAll("a.palette__item")];
  if (!items.length) return;
  const now = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
  const next = items[(now + step + items.length) % items.length];
  for (const item of items) item.setAttribute("aria-selected", String(item === next));
  next.scrollIntoView({ block: "nearest" });
}
palette?.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") { movePalette(1); event.preventDefault(); }
  if (event.key === "ArrowUp") { movePalette(-1); event.preventDefault(); }
  if (event.key === "Enter") {
    palette.querySelector('a.palette__item[aria-selected="true"]')?.click();
    event.preventDefault();
  }
});
for (const one of document.querySelectorAll("dialog")) {
  one.addEventListener("click", (event) => { if (event.target === one) one.close(); });
}

// Keys
const PAGES = { o: "/", t: "/topics", c: "/groups", m: "/messages", d: "/dead-letters", l: "/delayed", x: "/transactions", b: "/cluster", p: "/pipelines", a: "/audit", s: "/settings" };
let going = 0;
function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a"));
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.classList.contains("is-chosen"));
  const next = rows[Math.min(Math.max(now + step, 0), rows.length - 1)];
  rows.forEach((row) => row.classList.toggle("is-chosen", row === next));
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") { openPalette(); event.preventDefault(); return; }
  if (event.key === "Escape") {
    byId("sidebar")?.classList.remove("is-open");
    if (!document.querySelector("dialog[open]")) closeDrawer();
    return;
  }
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (going && Date.now() - going < 1200 && PAGES[event.key]) { location.href = base + PAGES[event.key]; return; }
  going = event.key === "g" ? Date.now() : 0;
  if (event.key === "/") { document.querySelector("main input[type=search]")?.focus(); event.preventDefault(); }
  if (event.key === "j") moveRow(1);
  if (event.key === "k") moveRow(-1);
  if (event.key === "?") byId("keys").showModal();
});
