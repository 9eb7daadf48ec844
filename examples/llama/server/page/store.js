// Conversations and settings in the browser's own storage, shared by its tabs.

const CHAT = "minigrad.chat.";
const SETTINGS = "minigrad.settings";
const DEFAULTS = { system: "", temperature: "0.7", top_p: "0.95", max_tokens: "", seed: "", theme: "auto", key: "", model: "" };

/** The settings, with defaults for those that were never set. */
export function settings() {
  return { ...DEFAULTS, ...read(SETTINGS) };
}

export function keepSettings(values) {
  localStorage.setItem(SETTINGS, JSON.stringify(values));
}

/** A conversation that nothing was said in. It is kept from its first message on. */
export function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "New conversation", messages: [], changed: Date.now(), revision: 0 };
}

/** All that are kept, the one that changed last first. */
export function conversations() {
  return Object.keys(localStorage).filter((key) => key.startsWith(CHAT)).map((key) => read(key))
    .filter((each) => each && Array.isArray(each.messages)).sort((one, other) => other.changed - one.changed);
}

export function conversation(id) {
  const found = read(CHAT + id);
  return found && Array.isArray(found.messages) ? found : null;
}

/**
 * Keeps a conversation. Where another tab has changed it meanwhile, this one becomes a conversation of its own, so that
 * neither is lost. Throws where the browser's storage is full.
 */
export function keep(chat) {
  const stored = conversation(chat.id);
  if (chat.revision && (stored ? stored.revision : 0) !== chat.revision) {
    chat.id = fresh().id;
    chat.revision = 0;
  }
  chat.changed = Date.now();
  localStorage.setItem(CHAT + chat.id, JSON.stringify({ ...chat, revision: chat.revision + 1 }));
  chat.revision += 1;
}

/** Keeps a copy under another name, of a conversation that is about to lose what was said later. */
export function keepCopy(chat) {
  keep({ ...structuredClone(chat), id: fresh().id, revision: 0, title: `${chat.title} (before the edit)` });
}

export function remove(id) {
  localStorage.removeItem(CHAT + id);
}

/** Calls `changed` with a conversation's id (null: settings) whenever another tab writes. */
export function watch(changed) {
  window.addEventListener("storage", (event) => {
    if (event.key === null || event.key === SETTINGS) changed(null);
    else if (event.key.startsWith(CHAT)) changed(event.key.slice(CHAT.length));
  });
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}
