"use strict";
// Tables of class "sortable": a click on a heading sorts by that column, a second one the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.tHead.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
      const isNumber = head.dataset.kind === "number";
      const order = (a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === "" || right === "") return (left === "") - (right === ""); // what is missing comes last
        const way = isNumber ? Number(left) - Number(right) : left.localeCompare(right, "en", { numeric: true });
        return down ? -way : way;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
