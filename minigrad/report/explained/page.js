"use strict";

// Texts of rows are parsed when the first row is opened, and put into the page row by row.
let texts = null;

function make(tag, content, kind) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  if (content !== undefined) made.textContent = content;
  return made;
}

function fill(detail, k) {
  if (texts === null) texts = JSON.parse(document.getElementById("texts").textContent);
  const forms = detail.querySelector(".forms");
  if (forms.childElementCount) return;
  const found = Object.entries(texts[k] || {});
  if (!found.length) forms.append(make("p", "The texts of this row were left out to keep the page small.", "note"));
  for (const [name, text] of found) {
    const part = make("section");
    const block = make("pre", text);
    block.tabIndex = 0;
    block.setAttribute("aria-label", name);
    part.append(make("h3", name), block);
    forms.append(part);
  }
}

function toggle(k, open) {
  const row = document.getElementById("k" + k);
  const detail = document.getElementById("d" + k);
  if (!row || !detail) return;
  const now = open === undefined ? detail.hidden : open;
  if (now) fill(detail, k);
  detail.hidden = !now;
  row.toggleAttribute("data-open", now);
  row.querySelector("button").setAttribute("aria-expanded", String(now));
}

function show(k) {
  toggle(k, true);
  const row = document.getElementById("k" + k);
  if (!row) return;
  row.scrollIntoView({ block: "start", behavior: "smooth" });
  row.querySelector("button").focus({ preventScroll: true });
}

function sortBy(header) {
  const column = [...header.parentElement.children].indexOf(header);
  const down = header.getAttribute("aria-sort") !== "descending";
  for (const other of header.parentElement.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = document.querySelector("#rows tbody");
  const value = (row) => {
    const cell = row.children[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const rows = [...body.querySelectorAll("tr.row")];
  rows.sort((a, b) => {
    const x = value(a), y = value(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  });
  for (const row of rows) body.append(row, document.getElementById("d" + row.id.slice(1)));
}

document.addEventListener("click", (event) => {
  const header = event.target.closest("th button");
  if (header) return sortBy(header.parentElement);
  const link = event.target.closest("[data-row]");
  if (link) {
    event.preventDefault();
    return show(link.dataset.row);
  }
  const row = event.target.closest("tr.row");
  if (row && !String(getSelection())) toggle(row.id.slice(1));
});

// What a box of the graph reads and is read by, while it is pointed at or has the focus.
for (const [on, off] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
  for (const kind of [on, off]) {
    document.addEventListener(kind, (event) => {
      const box = event.target.closest("[data-box]");
      if (!box) return;
      for (const edge of document.getElementsByClassName("b" + box.dataset.box)) edge.classList.toggle("lit", kind === on);
    });
  }
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

addEventListener("hashchange", () => {
  if (/^#k\d+$/.test(location.hash)) show(location.hash.slice(2));
});
if (/^#k\d+$/.test(location.hash)) show(location.hash.slice(2));
