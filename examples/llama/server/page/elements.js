// Making elements, and copying text.

/** An element with properties and children, texts among them. */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Copies a text, and says so on the button for a moment. */
export async function copy(text, button) {
  const name = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not copied";
  setTimeout(() => { button.textContent = name; }, 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);  // pages that come by http from another machine have no clipboard
  }
}

function copiedBySelection(text) {
  const area = element("textarea", { value: text, className: "hidden" });
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}
