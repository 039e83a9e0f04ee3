// Tables of words that are wider than the window are marked for phone.css, which stacks their cells.
// A cell that is aligned to the right holds a number, and numbers are compared side by side.
addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table.docutils")].filter(
    (table) => table.tHead && !table.querySelector("td.text-right"),
  );
  for (const table of tables) {
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, column) => (cell.dataset.head = heads[column]));
    }
  }
  const stack = () => {
    for (const table of tables) {
      table.classList.remove("stacked");
      table.classList.toggle("stacked", table.scrollWidth > table.parentElement.clientWidth);
    }
  };
  addEventListener("resize", stack);
  stack();
});
