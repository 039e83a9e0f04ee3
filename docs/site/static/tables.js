// Marks tables that are wider than the window, so that phone.css stacks their cells. Tables of which
// more than half the cells begin with a number stay: their numbers are compared side by side.
addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table.docutils")].filter((table) => {
    const cells = [...table.querySelectorAll("td")];
    return table.tHead && 2 * cells.filter((cell) => /^[-+]?\d/.test(cell.innerText)).length <= cells.length;
  });
  for (const table of tables) {
    for (const cell of table.querySelectorAll("td")) {
      cell.dataset.head = table.tHead.rows[0].cells[cell.cellIndex].innerText.trim();
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
