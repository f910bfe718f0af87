// The table of all encodings: filters and a choice of columns above it, and a click on a heading
// sorts by that column.
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("#all-position-encodings table");
  if (!table) return;
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
  search.placeholder = "rope, logits, ...";
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

  // Columns that are shown at first fit into the page; filters apply to the hidden ones, too.
  const atFirst = ["encoding", "family", "loss, 64 tokens", "loss, 512 tokens", "time", "parameters"];
  const chooser = document.createElement("details"), summary = document.createElement("summary");
  const boxes = headings.map((heading) => {
    const box = document.createElement("input"), label = document.createElement("label");
    box.type = "checkbox";
    box.checked = atFirst.includes(heading.textContent.trim());
    label.append(box, " " + heading.textContent);
    if (heading !== headings[0]) chooser.append(label);
    return box;
  });
  chooser.className = "table-columns";
  chooser.prepend(summary);
  function choose() {
    boxes.forEach((box, column) => {
      for (const row of [table.tHead.rows[0], ...rows]) row.cells[column].hidden = !box.checked;
    });
    summary.textContent = `Columns: ${boxes.filter((box) => box.checked).length} of ${boxes.length}`;
  }
  chooser.addEventListener("input", choose);
  bar.append(chooser);
  (table.closest(".table-wrapper") || table).before(bar);
  table.classList.add("filtered");

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
  choose();
});
