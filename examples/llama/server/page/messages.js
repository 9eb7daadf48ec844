// One message on the page: its text, what can be done with it, and how fast it came.

import { copy, element } from "./elements.js";
import { Markdown } from "./markdown.js";

/** Shows a message; `acts` has the functions edit(text) and retry(). */
export class MessageView {
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.body = element("div", { className: "body" });
    this.tools = element("div", { className: "tools" });
    const name = message.role === "user" ? "You" : (message.model ?? "Model");
    this.node = element("article", { className: `message ${message.role}`, ariaLabel: name },
      element("p", { className: message.role === "user" ? "hidden" : "by" }, name));
    if (message.role === "assistant") {
      this.thought = element("div");
      this.thoughts = element("details", { className: "thought", hidden: true },
        element("summary", {}, "Reasoning"), this.thought);
      this.node.append(this.thoughts);
      this.markdown = new Markdown(this.body);
    }
    this.node.append(this.body, this.tools);
    this.show();
  }

  /** Brings the page up to the message, which may have grown; `running` while it still grows. */
  show(running = false) {
    const { role, content, reasoning, error } = this.message;
    if (role === "user") {
      this.body.textContent = content;
    } else {
      this.thoughts.hidden = !reasoning;
      this.thought.textContent = reasoning ?? "";
      this.thoughts.open = this.thoughts.open || (running && !content && Boolean(reasoning));
      this.markdown.show(content);
      this.body.classList.toggle("waiting", running && !content);
    }
    this.node.setAttribute("aria-busy", String(running));
    this.wrong?.remove();
    if (error) {
      this.wrong = element("p", { className: "wrong" }, error);
      this.body.after(this.wrong);
    }
    this.tools.replaceChildren(...(running ? [] : this.buttons()));
  }

  buttons() {
    const { role, content, stats } = this.message;
    const found = [];
    if (content) {
      const button = element("button", { type: "button" }, "Copy");
      button.addEventListener("click", () => copy(content, button));
      found.push(button);
    }
    const act = element("button", { type: "button" }, role === "user" ? "Edit" : "Retry");
    act.addEventListener("click", () => (role === "user" ? this.edit() : this.acts.retry()));
    found.push(act);
    if (stats) found.push(element("span", { className: "speed" }, stats));
    return found;
  }

  /** Puts a field in place of the text; its new text is asked in place of this one. */
  edit() {
    const field = element("textarea", { className: "edit", value: this.message.content, ariaLabel: "Edit the question",
      rows: Math.min(12, this.message.content.split("\n").length + 1) });
    const send = element("button", { type: "button" }, "Ask");
    const cancel = element("button", { type: "button" }, "Cancel");
    const back = () => {
      this.node.classList.remove("editing");
      this.show();
    };
    send.addEventListener("click", () => (field.value.trim() ? this.acts.edit(field.value) : back()));
    cancel.addEventListener("click", back);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send.click();
      }
    });
    this.node.classList.add("editing");
    this.body.replaceChildren(field);
    this.tools.replaceChildren(send, cancel);
    field.focus();
  }
}
