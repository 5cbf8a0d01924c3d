// A button that acts on the selected rows of a table: it shows how many there are, and waits for the first.
const buttons = () => document.querySelectorAll("[data-selected-count]");

function showCounts() {
  for (const button of buttons()) {
    const count = button.form.querySelectorAll('input[name="selected"]:checked').length;
    const label = button.querySelector("span");
    button.dataset.label ??= label.textContent;
    const text = count ? button.dataset.selectedCount.replace("#", count) : button.dataset.label;
    if (label.textContent !== text) label.textContent = text;
    button.disabled = count === 0;
  }
}

for (const name of ["change", "selection", "htmx:after:swap"]) document.addEventListener(name, showCounts);
showCounts();
