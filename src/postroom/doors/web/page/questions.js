// Questions that agents ask people: above every view, with a button for each option, the deadline and the default.
import { el, keyed, set, setSaid } from "./dom.js";
import { post } from "./api.js";
import { toast } from "./dialogs.js";
import { now, plain, soon, span } from "./text.js";

const STILL_MS = 600; // a click that falls on a card which has just come there was meant for another

export class Questions {
  constructor(section) {
    this.section = section;
    this.list = el("div.list");
    this.more = el("p.faint");
    this.moved = 0;
    section.append(this.list, this.more);
  }

  show({ list, more }) {
    const shape = list.map((question) => question.id).join();
    if (shape !== this.shape) this.moved = performance.now();
    this.shape = shape;
    this.section.hidden = list.length === 0;
    keyed(this.list, list, ({ id }) => id, (question) => this.card(question), update);
    set(this.more, more ? `and ${more} more: postroom questions` : "");
  }

  card({ id, options }) {
    const p = { who: el("p.soft"), text: el("p.text"), ends: el("small.faint") };
    const answer = (said) => this.answer(card, id, said);
    const field = el("input", { name: "answer", required: true, autocomplete: "off", "aria-label": "Your answer" });
    const form = el("form", null, field, el("button.primary", null, "Answer"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer(field.value);
    });
    const buttons = options.map((option) => el("button", { onclick: () => answer(option), said: option }));
    const card = el("article.card.question", null, p.who, p.text, options.length ? el("div.options", null, ...buttons) : form, p.ends);
    card.dataset.question = id;
    card.parts = p;
    return card;
  }

  async answer(card, id, said) {
    if (performance.now() - this.moved < STILL_MS) return;
    const buttons = [...card.querySelectorAll("button")];
    for (const button of buttons) button.disabled = true;
    try {
      await post("/api/answer", { id, answer: said });
      toast(`Answered: ${plain(said)}`);
    } catch (error) {
      toast(error.message, true);
      for (const button of buttons) button.disabled = false;
      if (error.type === "IdentityRefused") dispatchEvent(new Event("postroom-who")); // the page shows where to say it
    }
  }
}

function update({ parts: p }, { asker, person, text, until_ms, default: usual }) {
  setSaid(p.who, `${asker} asks ${person ?? "any person"}`);
  setSaid(p.text, text);
  const left = until_ms === null ? "" : `open until ${soon(until_ms)}, for ${span(Math.max(0, until_ms - now()))} more`;
  setSaid(p.ends, [left, usual === null ? "" : `then the answer is: ${usual}`].filter(Boolean).join("; "));
}
