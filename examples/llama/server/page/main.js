// The page: conversations at the side, the present one, the question, settings.

import { ServerError, answer, models } from "./api.js";
import { element } from "./elements.js";
import { MessageView } from "./messages.js";
import * as store from "./store.js";

const KEEP_EVERY = 1000;  // milliseconds between savings of an answer that grows
const at = (id) => document.getElementById(id);
const ui = Object.fromEntries(["ask", "empty", "forget", "list", "menu", "messages", "model", "new", "notice",
  "open-settings", "question", "scroll", "send", "settings", "shade", "side", "speed", "spoken", "stop", "title"]
  .map((id) => [id, at(id)]));

let chat = store.fresh();
let views = [];
let running = null;  // {controller, chat} of the answer that is coming
let follows = true;  // whether the end of the conversation is in view

// What is shown

function showList() {
  ui.list.replaceChildren(...store.conversations().map((each) => {
    const name = element("button", { type: "button", className: "name", title: each.title }, each.title);
    name.addEventListener("click", () => open(each.id));
    const gone = element("button", { type: "button", className: "delete", ariaLabel: `Delete ${each.title}` }, "\u00d7");
    gone.addEventListener("click", () => forget(each));
    const item = element("li", { className: each.id === chat.id ? "current" : "" }, name, gone);
    if (each.id === chat.id) name.setAttribute("aria-current", "true");
    return item;
  }));
}

function showChat() {
  ui.title.textContent = chat.title;
  document.title = chat.messages.length ? `${chat.title} \u00b7 minigrad` : "minigrad chat";
  views = chat.messages.map((message, index) => viewOf(message, index));
  ui.messages.replaceChildren(...views.map((view) => view.node));
  ui.empty.hidden = chat.messages.length > 0;
  follows = true;
  follow();
}

function viewOf(message, index) {
  return new MessageView(message, { edit: (text) => edit(index, text), retry: () => retry(index) });
}

function follow() {
  if (follows) ui.scroll.scrollTop = ui.scroll.scrollHeight;
}

function showRunning() {
  const busy = running !== null;
  ui.stop.hidden = !busy;
  ui.send.hidden = busy;
  ui.send.disabled = !ui.question.value.trim();
}

function say(text) {
  ui.notice.textContent = text;
  ui.notice.hidden = !text;
}

function closeSide() {
  ui.side.classList.remove("open");
  ui.shade.hidden = true;
  ui.menu.setAttribute("aria-expanded", "false");
}

// Conversations

function keep(which) {
  try {
    store.keep(which);
  } catch {
    say("This browser's storage is full: the conversation is not kept. Delete some others.");
  }
  showList();
}

function open(id) {
  stop();
  chat = store.conversation(id) ?? store.fresh();
  location.hash = chat.messages.length ? chat.id : "";
  say("");
  showChat();
  showList();
  closeSide();
  if (matchMedia("(pointer: fine)").matches) ui.question.focus();  // a phone would bring up its keyboard
}

function forget(each) {
  if (!confirm(`Delete "${each.title}"?`)) return;
  if (running?.chat.id === each.id) stop();
  store.remove(each.id);
  if (each.id === chat.id) open("");
  showList();
}

// Questions and answers

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 60).replace(/\s+\S*$/, "")}\u2026` : line;
}

async function ask(text) {
  if (!chat.messages.length) chat.title = titleOf(text);
  chat.messages.push({ role: "user", content: text });
  await run();
}

async function edit(index, text) {
  stop();
  if (index < chat.messages.length - 2) store.keepCopy(chat);
  chat.messages.splice(index);
  if (!index) chat.title = titleOf(text);
  chat.messages.push({ role: "user", content: text });
  await run();
}

async function retry(index) {
  stop();
  if (index < chat.messages.length - 1) store.keepCopy(chat);
  chat.messages.splice(index);
  await run();
}

function requestOf(values) {
  const system = values.system.trim() ? [{ role: "system", content: values.system }] : [];
  const told = [];
  for (const { role, content } of chat.messages.filter((each) => each.content)) {
    const before = told[told.length - 1];  // a question that was never answered is part of the next one
    if (before?.role === role) before.content += `\n\n${content}`;
    else told.push({ role, content });
  }
  const number = (text) => (text === "" || Number.isNaN(Number(text)) ? undefined : Number(text));
  return { model: ui.model.value, messages: [...system, ...told], temperature: number(values.temperature),
    top_p: number(values.top_p), max_tokens: number(values.max_tokens), seed: number(values.seed) };
}

/** Has the conversation answered, in a message of its own that grows. */
async function run() {
  const values = store.settings();
  const request = requestOf(values);
  const mine = { controller: new AbortController(), chat };
  const message = { role: "assistant", content: "", model: request.model, stopped: true };  // until it has ended
  mine.chat.messages.push(message);
  running = mine;
  say("");
  keep(mine.chat);
  location.hash = mine.chat.id;
  showChat();
  showRunning();
  ui.spoken.textContent = "The answer begins.";
  const shower = new Shower(views[views.length - 1], mine);
  try {
    for await (const part of answer(request, values.key, mine.controller.signal)) shower.add(part);
    message.stopped = false;
  } catch (error) {
    if (error.name !== "AbortError") {
      message.error = error instanceof ServerError ? error.message : `The page failed: ${error.message}`;
      if (error.status === 401) ui.settings.showModal();
    }
  } finally {
    if (running === mine) running = null;
    shower.end();
    ui.spoken.textContent = message.error ?? message.content;
    showRunning();
  }
}

/** Puts what comes of an answer into its message, and that on the page once a frame. */
class Shower {
  constructor(view, mine) {
    Object.assign(this, { view, mine, message: view.message, begun: performance.now(), first: 0, last: 0, count: 0 });
    this.kept = performance.now();
    this.due = false;
  }

  add({ text, reasoning, finish, usage }) {
    if (text || reasoning) {
      this.last = performance.now();
      this.first ||= this.last;
      this.count += 1;
      this.message.content += text;
      if (reasoning) this.message.reasoning = (this.message.reasoning ?? "") + reasoning;
    }
    if (finish === "length") this.cut = true;
    if (usage) this.count = usage.completion_tokens;
    if (!this.due) {
      this.due = true;
      requestAnimationFrame(() => this.draw());
      setTimeout(() => this.draw(), 200);  // tabs in the background have no frames
    }
    if (performance.now() - this.kept > KEEP_EVERY) {
      this.kept = performance.now();
      keep(this.mine.chat);
    }
  }

  draw() {
    if (!this.due) return;
    this.due = false;
    if (running === this.mine) this.view.show(true);
    ui.speed.classList.remove("hint");
    ui.speed.textContent = this.speed();
    follow();
  }

  speed() {
    const seconds = (this.last - this.first) / 1000;
    const rate = this.count > 1 && seconds > 0 ? `, ${((this.count - 1) / seconds).toFixed(1)} tokens/s` : "";
    return `${this.count} ${this.count === 1 ? "token" : "tokens"}${rate}`;
  }

  end() {
    this.due = false;
    const wait = this.first ? `, first after ${((this.first - this.begun) / 1000).toFixed(2)} s` : "";
    const why = this.message.error ? "" : this.message.stopped ? ", stopped" : this.cut ? ", cut at the most tokens" : "";
    if (this.count) this.message.stats = this.speed() + wait + why;
    this.view.show(false);
    ui.speed.textContent = this.count ? this.message.stats : "";
    keep(this.mine.chat);
    if (this.mine.chat === chat) location.hash = chat.id;
    follow();
  }
}

function stop() {
  running?.controller.abort();
  running = null;
  showRunning();
}

// Models and settings

async function fillModels() {
  const values = store.settings();
  try {
    const names = await models(values.key);
    ui.model.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    if (names.includes(values.model)) ui.model.value = values.model;
    say("");
  } catch (error) {
    say(error.status === 401 ? "This server asks for an API key: put it into the settings." : error.message);
  }
}

function dress() {
  const { theme } = store.settings();
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function showSettings() {
  const form = ui.settings.querySelector("form");
  for (const [name, value] of Object.entries(store.settings())) if (form.elements[name]) form.elements[name].value = value;
  ui.settings.showModal();
}

function takeSettings() {
  const fields = new FormData(ui.settings.querySelector("form"));
  store.keepSettings({ ...store.settings(), ...Object.fromEntries(fields) });
  dress();
  fillModels();
}

// Events

ui.ask.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = ui.question.value;
  if (!text.trim() || running) return;
  ui.question.value = "";
  grow();
  ask(text);
});

function grow() {
  ui.question.style.height = "auto";
  ui.question.style.height = `${ui.question.scrollHeight}px`;
  ui.send.disabled = !ui.question.value.trim();
}

ui.question.addEventListener("input", grow);
ui.question.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    ui.ask.requestSubmit();
  } else if (event.key === "ArrowUp" && !ui.question.value && !running) {
    views.findLast((view) => view.message.role === "user")?.edit();
    event.preventDefault();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && ui.side.classList.contains("open")) closeSide();
  else if (event.key === "Escape" && running && !ui.settings.open) stop();
  else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    open("");
  }
});
ui.scroll.addEventListener("scroll", () => {
  follows = ui.scroll.scrollHeight - ui.scroll.scrollTop - ui.scroll.clientHeight < 60;
});
ui.stop.addEventListener("click", () => {
  stop();
  ui.question.focus();
});
ui.new.addEventListener("click", () => open(""));
ui.menu.addEventListener("click", () => {
  ui.side.classList.add("open");
  ui.shade.hidden = false;
  ui.menu.setAttribute("aria-expanded", "true");
  ui.new.focus();
});
ui.shade.addEventListener("click", closeSide);
ui["open-settings"].addEventListener("click", showSettings);
ui.settings.addEventListener("close", takeSettings);
ui.model.addEventListener("change", () => store.keepSettings({ ...store.settings(), model: ui.model.value }));
ui.forget.addEventListener("click", () => {
  if (!confirm("Delete all conversations of this browser?")) return;
  for (const each of store.conversations()) store.remove(each.id);
  open("");
});
store.watch((id) => {
  if (id === null) dress();
  showList();
  // What another tab said in this conversation is shown here, unless an answer is coming.
  if (id === chat.id && running === null) {
    chat = store.conversation(id) ?? store.fresh();
    showChat();
  }
});
window.addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (id && id !== chat.id && store.conversation(id)) open(id);
});

dress();
fillModels();
open(location.hash.slice(1));
showRunning();
