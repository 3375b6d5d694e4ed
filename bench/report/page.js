// Sorting and filtering of the tables; without scripts the page shows all rows in their first order.
"use strict";
(() => {
  const collator = new Intl.Collator("en", { numeric: true });
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  function key(row, column) {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    return "value" in cell.dataset ? { rank: 0, value: Number(cell.dataset.value) } : { rank: text ? 1 : 2, value: text };
  }

  // Figures first, then words, then nothing, in either direction.
  function compare(a, b, sign) {
    if (a.rank !== b.rank) return a.rank - b.rank;
    return sign * (a.rank === 0 ? a.value - b.value : collator.compare(a.value, b.value));
  }

  function sort(table, rows, column, direction) {
    const sign = direction === "descending" ? -1 : 1;
    const keyed = rows.map((row) => ({ row, key: key(row, column) }));
    if (direction !== "none") keyed.sort((a, b) => compare(a.key, b.key, sign));
    table.tBodies[0].append(...keyed.map((entry) => entry.row));
  }

  function makeSortable(table) {
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const direction = NEXT[head.getAttribute("aria-sort")];
        for (const other of heads) other.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", direction);
        sort(table, rows, column, direction);
      });
    });
  }

  function makeFilter(form, tables) {
    const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
    const texts = rows.map((row) => row.textContent.toLowerCase());
    const input = form.querySelector("input");
    const output = form.querySelector("output");
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
      let shown = 0;
      rows.forEach((row, place) => {
        row.hidden = words.length > 0 && !words.some((word) => texts[place].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      output.textContent = words.length ? `${shown} of ${rows.length} rows` : "";
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.hidden = false;
  }

  const tables = [...document.querySelectorAll("table.rows")];
  tables.forEach(makeSortable);
  if (tables.length) makeFilter(document.querySelector("form.filter"), tables);
})();
