// Long tables: filters and a choice of columns above them, and a click on a heading sorts by that
// column.
document.addEventListener("DOMContentLoaded", () => {
  const encodings = document.querySelector("#all-position-encodings table");
  // These columns fit into the page.
  const columns = ["encoding", "family", "loss, 64 tokens", "loss, 512 tokens", "time", "parameters"];
  if (encodings) improve(encodings, "rope, logits, ...", columns);
  const types = document.querySelector("#all-model-types table");
  if (types) improve(types, "llama, window, ...", []);
});

// `columns` are shown at first; if there are none, all are, and cannot be hidden.
function improve(table, example, columns) {
  const body = table.tBodies[0], headings = [...table.tHead.rows[0].cells], filters = [];
  const text = (row, column) => row.cells[column].textContent.trim();
  const rows = [...body.rows];

  const bar = document.createElement("form");
  bar.className = "table-filters";
  bar.onsubmit = (event) => event.preventDefault();
  const count = document.createElement("output");
  const add = (name, control, shows) => {
    const label = document.createElement("label");
    label.append(name + " ", control);
    bar.append(label);
    control.addEventListener("input", update);
    filters.push(shows);
  };
  function update() {
    for (const row of rows) row.hidden = !filters.every((shows) => shows(row));
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  }

  const search = document.createElement("input");
  search.type = "search";
  search.placeholder = example;
  add("search", search, (row) =>
    search.value.toLowerCase().split(/\s+/).every((word) => row.textContent.toLowerCase().includes(word)));
  headings.forEach((heading, column) => {
    const values = [...new Set(rows.map((row) => text(row, column)))].filter(Boolean).sort();
    if (values.length < 2 || values.length > 6) return;
    const select = document.createElement("select");
    select.append(new Option("any", ""), ...values.map((value) => new Option(value, value)));
    add(heading.textContent, select, (row) => !select.value || text(row, column) === select.value);
  });
  bar.append(count);

  if (columns.length) bar.append(chooser(table, headings, rows, columns));
  (table.closest(".table-wrapper") || table).before(bar);
  if (columns.length) table.classList.add("filtered");

  // "any" is the longest; what is not a number comes last, in order of its text.
  const number = (value) => (value === "any" ? Infinity : parseFloat(value.replaceAll(",", "")));
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.onclick = () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const compare = (a, b) => {
        const [x, y] = [number(a), number(b)];
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || (down ? -1 : 1) * a.localeCompare(b);
        return x === y ? 0 : (x < y) === down ? 1 : -1;
      };
      rows.sort((a, b) => compare(text(a, column), text(b, column)));
      body.append(...rows);
    };
  });
  update();
}

// Boxes that show and hide columns. Filters apply to hidden columns, too.
function chooser(table, headings, rows, columns) {
  const details = document.createElement("details"), summary = document.createElement("summary");
  details.className = "table-columns";
  details.append(summary);
  const boxes = headings.map((heading) => {
    const box = document.createElement("input"), label = document.createElement("label");
    box.type = "checkbox";
    box.checked = columns.includes(heading.textContent.trim());
    label.append(box, " " + heading.textContent);
    if (heading !== headings[0]) details.append(label);
    return box;
  });
  function choose() {
    boxes.forEach((box, column) => {
      for (const row of [table.tHead.rows[0], ...rows]) row.cells[column].hidden = !box.checked;
    });
    summary.textContent = `Columns: ${boxes.filter((box) => box.checked).length} of ${boxes.length}`;
  }
  details.addEventListener("input", choose);
  choose();
  return details;
}
