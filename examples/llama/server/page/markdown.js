// Markdown as elements: every text becomes a text node, so that nothing a model writes can be HTML.

import { copy, element } from "./elements.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** Shows Markdown in an element, again and again as the text grows: only blocks that changed are made anew. */
export class Markdown {
  constructor(where) {
    this.where = where;
    this.shown = [];
  }

  show(text) {
    const blocks = split(text);
    let same = 0;
    while (same < blocks.length && same < this.shown.length && blocks[same] === this.shown[same]) same++;
    while (this.where.childNodes.length > same) this.where.lastChild.remove();
    for (const block of blocks.slice(same)) {
      this.where.append(element("div", { className: "block" }, ...parse(block.split("\n"), 0)));
    }
    this.shown = blocks;
  }
}

/** The texts of blocks: what blank lines outside of code divide; lists and tables stay together. */
function split(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const opened = line.match(FENCE);
    if (fence === null && opened) {
      if (!lines.length || !ITEM.test(lines[0])) end();
      fence = opened[1];
      lines.push(line);
    } else if (fence !== null) {
      lines.push(line);
      if (closes(line, fence)) {
        fence = null;
        if (!ITEM.test(lines[0])) end();
      }
    } else if (!line.trim() && !(lines.length && ITEM.test(lines[0]))) {
      end();
    } else if (lines.length && ITEM.test(lines[0]) && lines[lines.length - 1] === "" && line.trim()
               && !ITEM.test(line) && !/^\s{2,}/.test(line)) {
      end();
      lines.push(line);
    } else {
      lines.push(line.trim() ? line : "");
    }
  }
  end();
  return blocks;
}

function closes(line, fence) {
  const found = line.trim();
  return found.length >= fence.length && found === found[0].repeat(found.length) && found[0] === fence[0];
}

/** The elements of some lines. */
function parse(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let match;
    if (!line.trim()) {
      at++;
    } else if ((match = line.match(FENCE))) {
      let end = at + 1;
      while (end < lines.length && !closes(lines[end], match[1])) end++;
      found.push(code(lines.slice(at + 1, end).join("\n"), match[2]));
      at = end + 1;
    } else if ((match = line.match(HEADING))) {
      // A page's own titles come before: an answer's begin below them.
      found.push(element(`h${Math.min(4, match[1].length + 1)}`, {}, ...inline(match[2])));
      at++;
    } else if (RULE.test(line)) {
      found.push(element("hr"));
      at++;
    } else if (QUOTE.test(line) && depth < 8) {
      let end = at;
      while (end < lines.length && QUOTE.test(lines[end])) end++;
      found.push(element("blockquote", {}, ...parse(lines.slice(at, end).map((each) => each.match(QUOTE)[1]), depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < 8) {
      const end = listEnd(lines, at);
      found.push(list(lines.slice(at, end), depth));
      at = end;
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_LINE.test(lines[at + 1])) {
      let end = at + 2;
      while (end < lines.length && lines[end].includes("|")) end++;
      found.push(table(lines.slice(at, end)));
      at = end;
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !starts(lines[end])) end++;
      found.push(element("p", {}, ...paragraph(lines.slice(at, end))));
      at = end;
    }
  }
  return found;
}

function starts(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
}

function paragraph(lines) {
  return lines.flatMap((line, at) => [...(at ? [element("br")] : []), ...inline(line.trim())]);
}

function listEnd(lines, start) {
  let end = start + 1;
  const indent = lines[start].match(ITEM)[1].length;
  let fence = null;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (fence !== null) {
      if (closes(line, fence)) fence = null;
      continue;
    }
    const opened = line.trim().match(FENCE);
    if (opened && /^\s/.test(line)) fence = opened[1];
    else if (line.trim() && !ITEM.test(line) && !/^\s/.test(line) && lines[end - 1] === "") break;
    else if (line.trim() && ITEM.test(line) && line.match(ITEM)[1].length < indent) break;
    else if (HEADING.test(line) || (RULE.test(line) && !ITEM.test(line))) break;
  }
  return end;
}

function list(lines, depth) {
  const first = lines[0].match(ITEM);
  const ordered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const match = line.match(ITEM);
    if (match && match[1].length <= first[1].length + 1) items.push([match[3]]);
    else items[items.length - 1].push(line);
  }
  const entries = items.map((item) => {
    const spaces = item.slice(1).filter((line) => line.trim()).map((line) => line.match(/^\s*/)[0].length);
    const least = spaces.length ? Math.min(...spaces) : 0;
    const parts = parse([item[0], ...item.slice(1).map((line) => line.slice(least))], depth + 1);
    // Of an item that is one paragraph, the text alone: lists of words have no gaps.
    return element("li", {}, ...parts.flatMap((part, at) => (!at && part.tagName === "P" ? [...part.childNodes] : [part])));
  });
  const start = ordered ? Number.parseInt(first[2], 10) : 1;
  return element(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...entries);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\|/, "").replace(/\|$/, "").split(/(?<!\\)\|/).map((each) => each.trim());
  const row = (tag, line) => element("tr", {}, ...cells(line).map((cell) => element(tag, {}, ...inline(cell))));
  return element("div", { className: "table", tabIndex: 0 }, element("table", {},
    element("thead", {}, row("th", lines[0])), element("tbody", {}, ...lines.slice(2).map((line) => row("td", line)))));
}

function code(text, language) {
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  return element("div", { className: "code" },
    element("div", { className: "bar" }, element("span", {}, language || "code"), button),
    element("pre", { tabIndex: 0 }, element("code", {}, text)));
}

const INLINE = [
  [/(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (match) => element("code", {}, match[2].replace(/^ (.*) $/, "$1"))],
  [/\*\*(?=\S)([\s\S]*?\S)\*\*|__(?=\S)([\s\S]*?\S)__(?!\w)/, (match) => element("strong", {}, ...inline(match[1] ?? match[2]))],
  [/\*(?=[^\s*])([^*]*[^\s*])\*(?!\*)|(?<!\w)_(?=[^\s_])([^_]*[^\s_])_(?!\w)/,
    (match) => element("em", {}, ...inline(match[1] ?? match[2]))],
  [/~~(?=\S)([^~]*\S)~~/, (match) => element("del", {}, ...inline(match[1]))],
  [/\[([^\]]+)\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"]*")?\s*\)/, (match) => link(match[2], inline(match[1])) ?? match[0]],
  [/https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"]/, (match) => link(match[0], [match[0]]) ?? match[0]],
  [/\\([\\`*_{}[\]()#+\-.!~|>])/, (match) => match[1]],
];

/** Text and elements of a line. */
function inline(text) {
  const found = [];
  let rest = text;
  while (rest) {
    let best = null;
    for (const [pattern, make] of INLINE) {
      const match = rest.match(pattern);
      if (match && (best === null || match.index < best.match.index)) best = { match, make };
    }
    if (best === null) {
      found.push(rest);
      break;
    }
    if (best.match.index) found.push(rest.slice(0, best.match.index));
    found.push(best.make(best.match));
    rest = rest.slice(best.match.index + best.match[0].length);
  }
  return found;
}

/** A link to another site, in a tab of its own; null for anything else than the web and mail. */
function link(address, content) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return element("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, ...content);
}
