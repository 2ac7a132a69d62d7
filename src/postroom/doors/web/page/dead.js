// Messages that were set aside: why, how often it was tried, and putting them back or dropping them.
import { el, keyed, nothing, set, setSaid } from "./dom.js";
import { drop, requeue } from "./detail.js";
import { go, here, linkTo } from "./place.js";
import { channelName, count, dayAndClock, now, plain, shortened, span } from "./text.js";

// deeds after which the message is still there to be looked at
const KEPT = new Set(["sent", "put back", "released"]);

export class DeadLetters {
  constructor(section, { open }) {
    this.open = open;
    this.chosen = new Set();
    this.head = el("p", null, "");
    this.all = el("input", { type: "checkbox", "aria-label": "Choose all", onchange: () => this.chooseThese(this.letters.map(({ line }) => line.id), this.all.checked) });
    this.back = el("button.primary", { onclick: () => this.act(requeue) }, "Put back");
    this.drop = el("button.danger", { onclick: () => this.act(drop) }, "Drop");
    this.right = el("div.right", null, el("label.soft", null, this.all, " all"), this.back, this.drop);
    this.kind = el("select", { "aria-label": "Error", onchange: () => go("dead", { ...here().query, pick: this.kind.value }) });
    this.text = el("input", { type: "search", placeholder: "Find in these", "aria-label": "Find in these", autocomplete: "off", spellcheck: false, oninput: () => this.filter() });
    this.every = el("a", { href: linkTo("conversation", { state: "dead" }) }, "Find in all dead letters");
    this.tools = el("div.tools", null, this.kind, this.text, this.every);
    this.list = el("div.letters");
    this.none = nothing("dead-letters", "No dead letters", "A message that fails on its last delivery appears here, with the history of every attempt.");
    this.deeds = el("tbody");
    this.done = el("section.section", { hidden: true }, el("h2", null, "Done by hand"), el("p.soft", null, "What people did on this page, latest first. These entries remain when the message is deleted."),
      el("div.card.wide", { tabIndex: 0, role: "region", "aria-label": "Done by hand" }, el("table.plain", null, el("thead", null, el("tr", null, ...["when", "who", "what", "which", "about it"].map((name) => el("th", { scope: "col" }, name)))), this.deeds)));
    section.append(el("div.head", null, el("h1", null, "Dead letters"), this.head, this.right), this.tools, this.list, this.none, this.done);
  }

  show({ letters, groups, grouped, count: all, deeds, pick }) {
    this.letters = letters;
    this.showDeeds(deeds);
    const there = new Set(letters.map(({ line }) => line.id));
    for (const id of this.chosen) if (!there.has(id)) this.chosen.delete(id);
    set(this.head, all > letters.length ? `${letters.length} of ${count(all)} shown${pick ? "" : ", the latest"}` : all ? `${all} set aside` : "");
    this.showKinds(groups, grouped, all, pick);
    this.none.hidden = all > 0;
    this.right.hidden = letters.length === 0;
    this.tools.hidden = all === 0;
    const shown = groups.map(({ group, count: many }) => ({ group, many, letters: letters.filter((letter) => letter.group === group) })).filter((each) => each.letters.length);
    keyed(this.list, shown, ({ group }) => group, ({ group }) => this.group(group), (section, each) => {
      set(section.many, each.many > each.letters.length ? `${each.letters.length} of ${each.many}` : String(each.many));
      section.ids = each.letters.map(({ line }) => line.id);
      keyed(section.list, each.letters, ({ line }) => line.id, ({ line }) => this.card(line.id), (card, letter) => this.update(card, letter));
    });
    this.filter();
    this.count();
  }

  showKinds(groups, grouped, all, pick) {
    const every = grouped < all ? `every error (kinds of the latest ${count(grouped)})` : "every error";
    const options = [[every, ""], ...groups.map(({ group, count: many }) => [`${shortened(plain(group), 70)} (${many})`, group])];
    if (pick && !groups.some(({ group }) => group === pick)) options.push([`${shortened(plain(pick), 70)} (0)`, pick]);
    const shape = JSON.stringify([options, pick]);
    if (shape === this.kinds) return;
    this.kinds = shape;
    this.kind.replaceChildren(...options.map(([words, value]) => new Option(words, value)));
    this.kind.value = pick;
    this.kind.classList.toggle("on", pick !== "");
  }

  /** Letters that failed in the same way, chosen together. */
  group(name) {
    const check = el("input", { type: "checkbox", "aria-label": `Choose all: ${plain(name)}`, onchange: () => this.chooseThese(section.ids, check.checked) });
    const many = el("span.num.soft");
    const list = el("div.letters");
    const section = el("section.same", { "aria-label": plain(name) }, el("h2", null, check, el("span.error", { said: name }), many), list);
    return Object.assign(section, { check, many, list, ids: [] });
  }

  filter() {
    const text = this.text.value.trim().toLowerCase();
    for (const { line } of this.letters ?? []) {
      const card = this.cardOf(line.id);
      const words = [line.error, line.from_agent, line.to_agent, line.channel, line.type, line.text].filter(Boolean).join("\n");
      if (card) card.hidden = text !== "" && !words.toLowerCase().includes(text);
    }
    for (const section of this.list.children) section.hidden = [...section.list.children].every((card) => card.hidden);
  }

  cardOf(id) {
    for (const section of this.list.children) if (section.list.keyed?.has(id)) return section.list.keyed.get(id);
    return undefined;
  }

  card(id) {
    const p = { check: el("input", { type: "checkbox", "aria-label": "Choose", onchange: () => this.chooseThese([id], p.check.checked) }), from: el("b"), to: el("b"), type: el("span.soft"), age: el("small.faint"), error: el("div.error"), text: el("div.text"), tries: el("summary"), history: el("ol") };
    const card = el("article.card.letter", null, p.check,
      el("div.what", null, el("div.way", null, p.from, el("span.faint", null, "→"), p.to, p.type, p.age), p.error, p.text, el("details", null, p.tries, p.history)),
      el("div.acts", null, el("button", { onclick: () => this.open(id) }, "Look"), el("button", { onclick: () => requeue([id]) }, "Put back"), el("button.danger", { onclick: () => drop([id]) }, "Drop")));
    card.parts = p;
    card.dataset.id = id;
    return card;
  }

  update(card, { line, attempts }) {
    const p = card.parts;
    p.check.checked = this.chosen.has(line.id);
    setSaid(p.from, line.from_agent);
    setSaid(p.to, line.to_agent ?? `# ${channelName(line.channel)}`);
    setSaid(p.type, line.type);
    set(p.age, `${span(now() - (Date.parse(attempts.at(-1)?.ended_at) || line.sent_ms))} ago`);
    setSaid(p.error, line.error ?? "it was given up, without a reason");
    setSaid(p.text, line.text ?? "");
    set(p.tries, `${attempts.length} attempt${attempts.length === 1 ? "" : "s"}`);
    keyed(p.history, attempts.map((attempt, n) => ({ ...attempt, n })), (a) => a.n, (a) => el("li", { said: `${a.agent ?? "no agent"}, ${a.claimed_at.slice(11, 19)}, for ${span(Date.parse(a.ended_at) - Date.parse(a.claimed_at))}: ${plain(a.error ?? "no reason given")}` }), () => {});
  }

  showDeeds(deeds) {
    this.done.hidden = deeds.length === 0;
    const shape = JSON.stringify(deeds);
    if (shape === this.shape) return;
    this.shape = shape;
    this.deeds.replaceChildren(...deeds.map((deed) => {
      const more = deed.count > 1 ? ` and ${deed.count - 1} more` : "";
      const which = KEPT.has(deed.what) ? el("button.link", { onclick: () => this.open(deed.ids[0]), said: deed.ids[0] }) : el("span.mono", { said: deed.ids[0] ?? "" });
      return el("tr", null, el("td.num", null, dayAndClock(deed.time_ms)), el("td", null, el("b", { said: deed.by })), el("td", { said: deed.what }), el("td", null, which, more), el("td.soft", { said: deed.detail }));
    }));
  }

  /** Choose letters, but not those that are filtered out. */
  chooseThese(ids, on) {
    for (const id of ids) {
      if (on && !this.cardOf(id)?.hidden) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    this.count();
  }

  count() {
    const n = this.chosen.size;
    this.back.disabled = this.drop.disabled = n === 0;
    set(this.back, n ? `Put ${n} back` : "Put back");
    set(this.drop, n ? `Drop ${n}` : "Drop");
    this.all.checked = n > 0 && n === (this.letters?.length ?? 0);
    for (const section of this.list.children) {
      section.check.checked = section.ids.every((id) => this.chosen.has(id));
      for (const card of section.list.children) card.parts.check.checked = this.chosen.has(card.dataset.id);
    }
  }

  async act(how) {
    if (await how([...this.chosen])) this.chosen.clear();
  }
}
