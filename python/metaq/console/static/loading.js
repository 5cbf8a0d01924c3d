// What a reader started shows that it is under way: after 200 ms a line runs at the top, and the drawer or the
// dialog opens with a skeleton. Until the answer is there, the pressed button cannot be pressed again.
const SLOW_MS = 200;
const line = document.getElementById("progress");
const skeleton = document.getElementById("skeleton");
const started = new Map();

function show() { line.hidden = [...started.values()].every((one) => !one.isSlow); }

function begin(key, whenSlow) {
  const one = { isSlow: false, buttons: [], focused: document.activeElement };
  one.timer = setTimeout(() => { one.isSlow = true; show(); whenSlow?.(); }, SLOW_MS);
  started.set(key, one);
  return one;
}
function end(key) {
  const one = started.get(key);
  if (!one) return;
  clearTimeout(one.timer);
  started.delete(key);
  for (const button of one.buttons) { button.disabled = false; button.removeAttribute("aria-busy"); }
  // A disabled button loses the focus.
  if (document.activeElement === document.body && one.focused?.isConnected) one.focused.focus();
  show();
}

// `open` shows the drawer or the dialog, whose content the answer will replace; `abandon` closes it if none comes.
export function followRequests(open, abandon) {
  document.addEventListener("htmx:before:request", (event) => {
    const { ctx } = event.detail;
    const source = ctx?.sourceElement;
    if (!source?.matches("a, form")) return;
    const target = ctx.target;
    const one = begin(ctx, () => {
      if (target?.id !== "drawer" && target?.id !== "dialog-body") return;
      target.replaceChildren(skeleton.content.cloneNode(true));
      open(target);
    });
    one.buttons = source.matches("form") ? [...source.querySelectorAll("button:not([type=button]):not([disabled])")] : [source];
    for (const button of one.buttons) { button.disabled = true; button.setAttribute("aria-busy", "true"); }
  });
  document.addEventListener("htmx:finally:request", (event) => {
    const { ctx } = event.detail;
    end(ctx);
    if (ctx?.target?.querySelector?.(":scope > .skeleton")) abandon(ctx.target);
  });
  // A click on a link that is under way would ask twice.
  document.addEventListener("click", (event) => {
    if (event.target.closest("a[aria-busy=true]")) { event.preventDefault(); event.stopImmediatePropagation(); }
  }, true);
  // Lists and pages load as a whole.
  window.addEventListener("beforeunload", () => { end("page"); begin("page"); });
  window.addEventListener("pageshow", () => end("page"));
}
