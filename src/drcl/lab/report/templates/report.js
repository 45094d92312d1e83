// A report as a tool: sort tables, hide methods and benchmarks, show the value under the pointer.
// Everything it needs is on the page already; without it the page shows all there is.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // ---- sort a table: by a click on a heading, or by the list that narrow windows show in place of headings

  const number = (cell) => (cell.dataset.value ? Number(cell.dataset.value) : NaN);

  function compare(column, down) {
    return (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      if (column === 0) return (down ? -1 : 1) * x.textContent.trim().localeCompare(y.textContent.trim());
      const [p, q] = [number(x), number(y)];
      if (isNaN(p) || isNaN(q)) return isNaN(p) - isNaN(q); // what is not known comes last either way
      return down ? q - p : p - q;
    };
  }

  function sort(table, column, down) {
    const body = table.tBodies[0];
    table.listed ??= [...body.rows];
    const rows = column === null ? table.listed : [...table.listed].sort(compare(column, down));
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, k) => {
      if (k === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  for (const table of all("table.results")) {
    const list = table.closest("section").querySelector(".order select");
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const first = column === 0 ? "ascending" : "descending"; // large numbers first, names from A
        const next = now === null ? first : now === "ascending" ? "descending" : "ascending";
        const over = now !== null && now !== first; // the third click: as listed again
        sort(table, over ? null : column, next === "descending");
        list.value = over ? "" : String(column);
      });
    });
    list.parentElement.hidden = false;
    list.addEventListener("change", () => {
      sort(table, list.value === "" ? null : Number(list.value), list.value !== "0");
    });
  }

  // ---- show and hide

  function show(button, elements, yes) {
    button.setAttribute("aria-pressed", String(yes));
    for (const element of elements) element.classList.toggle("off", !yes);
  }

  const parts = (button) =>
    button.dataset.showB
      ? all(`#${button.dataset.showB}, nav a[href="#${button.dataset.showB}"]`)
      : all(`[data-m="${button.dataset.showM}"]`);
  const toggles = all("[data-show-b], [data-show-m]");
  for (const button of toggles) {
    button.addEventListener("click", () => show(button, parts(button), button.getAttribute("aria-pressed") === "false"));
  }
  for (const button of all("[data-show-all]")) {
    button.addEventListener("click", () => toggles.forEach((each) => show(each, parts(each), true)));
  }
  for (const part of all(".tools, .scripted")) part.hidden = false;

  // ---- a row under the pointer is the method that stands out in the figures

  for (const row of all("table.results tr[data-m]")) {
    const point = (yes) => {
      document.body.classList.toggle("pointed", yes);
      for (const part of all(`svg g[data-m="${row.dataset.m}"]`)) part.classList.toggle("here", yes);
    };
    row.addEventListener("mouseenter", () => point(true));
    row.addEventListener("mouseleave", () => point(false));
  }

  // ---- words at the pointer, at the finger and at the keyboard's focus

  const tip = document.querySelector(".tip");

  function tell(element) {
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    const [at, own] = [element.getBoundingClientRect(), tip.getBoundingClientRect()];
    const left = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 8);
    const top = at.top - own.height - 8;
    tip.style.translate = `${left}px ${top < 8 ? at.bottom + 8 : top}px`;
  }

  const hide = () => (tip.hidden = true);
  for (const element of all("abbr[title], .hit")) {
    const title = element.querySelector("title");
    element.dataset.tip = title ? title.textContent : element.title;
    if (title) title.remove();
    else {
      element.setAttribute("aria-description", element.title);
      element.removeAttribute("title");
      if (!element.closest("button")) element.tabIndex = 0;
    }
    element.addEventListener("pointerenter", () => tell(element));
    element.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    element.addEventListener("focus", () => tell(element));
    element.addEventListener("blur", hide);
  }
  addEventListener("pointerdown", (event) => event.target.closest("[data-tip]") ?? hide());
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  addEventListener("scroll", hide, { passive: true });
})();
