"use strict";
(() => {
  const bar = document.querySelector(".bar");
  const rows = [...document.querySelectorAll("[data-case]")];
  const told = bar.querySelector("output");
  const search = bar.querySelector("input");
  const buttons = [...bar.querySelectorAll("button")];
  const texts = new Map();
  for (const row of rows) {
    texts.set(row.dataset.case, `${texts.get(row.dataset.case) ?? ""} ${row.textContent}`.toLowerCase());
  }

  const filter = () => {
    const outcome = buttons.find((button) => button.getAttribute("aria-pressed") === "true").value;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = new Set();
    for (const row of rows) {
      const fits = (!outcome || row.dataset.outcomes.split(" ").includes(outcome)) &&
        words.every((word) => texts.get(row.dataset.case).includes(word));
      row.hidden = !fits;
      if (fits) shown.add(row.dataset.case);
    }
    for (const group of document.querySelectorAll("[data-family]")) {
      group.hidden = !group.querySelector("tr[data-case]:not([hidden])");
    }
    told.textContent = `${shown.size} of ${texts.size} cases`;
  };

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    target.closest("[data-case]")?.removeAttribute("hidden");
    for (let box = target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target.scrollIntoView();
  };

  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      filter();
    });
  }
  search.addEventListener("input", filter);
  addEventListener("hashchange", open);
  bar.hidden = false;
  filter();
  open();
})();
