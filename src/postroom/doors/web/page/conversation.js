// The conversation: the diagram, what is looked for in it, and the slider that goes back through what is kept.
import { byId, el, icon, set } from "./dom.js";
import { get } from "./api.js";
import { Model } from "./model.js";
import { Diagram, ROW } from "./diagram.js";
import { go, here } from "./place.js";
import { FIELDS, Search } from "./search.js";
import { channelName, clock, count, dayAndClock, plain, shortened } from "./text.js";

const KEPT = 4000; // messages that the page holds while it follows
const KEPT_READING = 12000; // and while somebody reads further up
const PAGE = 400;
const SLIDER = 10000;
const CHOICES = ["agent", "channel", "type", "state"]; // filters that have a list; others come from links, and can be taken off

export class Conversation {
  constructor(about, { onPick, onMode }) {
    this.about = about;
    this.onMode = onMode;
    this.live = new Model();
    this.search = null; // what was found, while something is looked for
    this.past = null;
    this.moment = null;
    this.older = null; // where older messages go on
    this.unseen = 0;
    this.wanted = {};
    this.diagram = new Diagram({
      lanes: byId("lanes"), scroll: byId("scroll"), sheet: byId("sheet"), lookAfter: about.look_after, me: about.name, onPick,
      signs: [byId("lanes-left"), byId("lanes-right")],
    });
    this.diagram.show(this.live);
    byId("legend").append(...about.looks.map((look) => el(`span.look-${look}`, null, icon(look), look)));
    byId("f-state").append(...about.states.map((state) => new Option(state, state)));
    this.wireFilters();
    this.wireTime();
    byId("scroll").addEventListener("scroll", () => this.scrolled(), { passive: true });
    byId("fresh").addEventListener("click", () => this.follow());
  }

  get model() {
    return this.past ?? this.search?.model ?? this.live;
  }

  // Now

  async begin() {
    const { lines, cursor, older } = await get("/api/recent", { limit: PAGE });
    const again = this.live.all.length > 0;
    this.live = new Model();
    this.older = older;
    for (const line of lines) this.live.put(line);
    if (this.search && again) this.look();
    this.showNow();
    return cursor;
  }

  /** What just happened. */
  take(lines) {
    const atEnd = !this.past && this.diagram.atEnd;
    const found = this.search?.take(lines);
    let fresh = 0;
    for (const line of lines) fresh += this.live.put(line) ? 1 : 0;
    if (this.past) return;
    const gone = this.live.trim(atEnd || this.search ? KEPT : KEPT_READING);
    if (gone) this.older ??= "gone";
    this.came(-(found?.gone ?? gone), found?.fresh ?? fresh, atEnd);
  }

  /** So many more are shown before and after those that were there. */
  came(before, after, atEnd) {
    if (atEnd) {
      this.unseen = 0;
      this.diagram.toEnd();
    } else {
      this.unseen += after;
      if (before) this.diagram.shift(before);
      this.diagram.ask();
    }
    this.tell();
  }

  follow() {
    if (this.past) return this.toNow();
    this.unseen = 0;
    this.diagram.toEnd();
    this.tell();
  }

  /** Show what is there now, or what of it is looked for, and its end. */
  showNow() {
    if (this.past) return;
    this.unseen = 0;
    this.diagram.show(this.model);
    this.diagram.toEnd();
    this.tell();
  }

  scrolled() {
    if (!this.past && this.diagram.atEnd && this.unseen) {
      this.unseen = 0;
      this.tell();
    }
    if (!this.past && !this.search && byId("scroll").scrollTop < 20 * ROW) this.loadOlder();
  }

  async loadOlder() {
    // what was trimmed away is found by the slider: the place where older messages go on is not known any more
    if (!this.older || this.older === "gone" || this.loading) return;
    this.loading = true;
    try {
      const { lines, older } = await get("/api/older", { before: this.older, limit: PAGE });
      this.older = older;
      const more = this.live.prepend(lines);
      if (more && this.model === this.live) this.diagram.shift(more);
    } finally {
      this.loading = false;
    }
  }

  tell() {
    const fresh = byId("fresh");
    fresh.hidden = this.unseen === 0;
    set(fresh, `${count(this.unseen)} new ↓`);
    this.tellFound();
    const empty = byId("empty");
    empty.hidden = this.diagram.length > 0;
    if (!empty.hidden) empty.replaceChildren(...this.nothing());
    this.fillChoices();
  }

  fillChoices() {
    fill(byId("f-agent"), [...this.live.agents], this.wanted.agent, plain);
    fill(byId("f-channel"), [...this.live.channels], this.wanted.channel, (name) => plain(channelName(name)));
    fill(byId("f-type"), [...this.live.types], this.wanted.type, plain);
  }

  /** How many were found, and what was searched for them. */
  tellFound() {
    const found = byId("f-found");
    found.hidden = !this.isFiltered;
    byId("f-on").hidden = this.past !== null || this.search?.how !== "stopped";
    if (found.hidden) return;
    const n = this.diagram.length;
    const hits = `${count(n)} hit${n === 1 ? "" : "s"}`;
    const { how, reached } = this.past ? { how: "past", reached: this.past.reached } : this.search;
    const back = reached === null ? "" : `searched back to ${dayAndClock(reached)}`;
    set(found, { running: `${hits} so far, ${back || "searching"}`, stopped: `the latest ${hits}, ${back}`, trimmed: `the latest ${hits}, ${back}`, done: `${hits} in all`, past: `${hits} until this moment${back && `, ${back}`}` }[how]);
  }

  nothing() {
    if (this.isFiltered && this.search?.how === "running" && !this.past) return [el("h2", null, "Searching…")];
    if (this.isFiltered && this.past) return [el("h2", null, "Nothing matches around this moment")];
    if (this.isFiltered && this.search?.how === "done") return [el("h2", null, "Nothing matches"), el("p", null, "Every message in this room was searched in full.")];
    if (this.isFiltered) return [el("h2", null, "Nothing matches so far")];
    if (this.past) return [el("h2", null, "Nothing had been sent yet")];
    return [el("h2", null, "No messages yet"), el("p", null, "An arrow appears as soon as a message is stored. Try "), el("p", null, el("code", null, "postroom send bob 'hello' --as ada --new"))];
  }

  // What is looked for

  get isFiltered() {
    return Object.keys(this.wanted).length > 0;
  }

  wireFilters() {
    const text = byId("f-text");
    let waiting = 0;
    text.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.wish(), 150);
    });
    text.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !text.value) return; // an empty field is left
      clearTimeout(waiting);
      text.value = "";
      this.wish();
      event.preventDefault();
      event.stopPropagation();
    });
    for (const name of ["search", ...CHOICES]) byId(`f-${name}`).addEventListener("change", () => this.wish()); // a search, at Enter
    byId("f-more").addEventListener("click", () => go("conversation", { ...here().query, to: "", free: "", thread: "" }));
    byId("f-clear").addEventListener("click", () => go("conversation", { message: here().query.message }));
    byId("f-on").addEventListener("click", () => {
      this.search.goOn();
      this.tell();
    });
  }

  /** The address says what is looked for; what the fields say becomes the address. */
  wish() {
    const { query } = here();
    const fields = { text: byId("f-text").value.trim(), search: byId("f-search").value.trim() };
    for (const name of CHOICES) fields[name] = byId(`f-${name}`).value;
    this.wished = fields.text;
    const typing = Boolean(query.text) && ["search", ...CHOICES].every((name) => (query[name] ?? "") === fields[name]);
    go("conversation", { ...query, ...fields }, typing); // not a place of its own for each letter
  }

  /** Look for what the address says. */
  want(query) {
    const wanted = Object.fromEntries(FIELDS.filter((name) => query[name]).map((name) => [name, query[name]]));
    if (JSON.stringify(wanted) === JSON.stringify(this.wanted)) return;
    this.wanted = wanted;
    const text = wanted.text ?? "";
    if (text !== this.wished) byId("f-text").value = text; // else it is the field's own, and more may have been typed since
    this.wished = text;
    this.fillChoices();
    for (const name of ["search", ...CHOICES]) {
      const choice = byId(`f-${name}`);
      choice.value = wanted[name] ?? "";
      choice.classList.toggle("on", choice.value !== "");
    }
    const more = wanted.thread ? "one thread" : wanted.to ? `mail for ${shortened(plain(wanted.to), 24)}` : wanted.free ? "mail for any agent" : "";
    byId("f-more").hidden = !more;
    set(byId("f-more").firstElementChild, more);
    byId("f-more").setAttribute("aria-label", `Stop showing only ${more}`);
    byId("f-clear").hidden = !this.isFiltered;
    this.look();
  }

  look() {
    this.search?.end();
    this.search = null;
    if (this.isFiltered) {
      const search = (this.search = new Search(this.wanted, (before, after) => {
        if (this.model === search.model) this.came(before, after, this.diagram.atEnd);
      }));
      search.run();
    }
    if (this.past) this.goTo(this.moment);
    this.showNow();
  }

  // Time

  wireTime() {
    const slider = byId("t-slider");
    let waiting = 0;
    slider.addEventListener("input", () => {
      this.stop();
      clearTimeout(waiting);
      const at = this.timeOf(Number(slider.value));
      this.showTime(at);
      waiting = setTimeout(() => (Number(slider.value) >= SLIDER ? this.toNow() : this.goTo(at)), 90);
    });
    byId("t-live").addEventListener("click", () => this.toNow());
    byId("t-play").addEventListener("click", () => this.playOrStop());
    this.pulse({ time_ms: this.about.now_ms });
  }

  get isPast() {
    return this.past !== null;
  }

  timeOf(value) {
    const oldest = this.about.oldest_ms ?? this.now;
    return Math.round(oldest + ((this.now - oldest) * value) / SLIDER);
  }

  pulse({ time_ms }) {
    this.now = time_ms;
    if (!this.past) this.showTime(time_ms, false);
  }

  showTime(ms, past = true) {
    set(byId("t-now"), past ? dayAndClock(ms) : `now · ${clock(ms, false)}`);
    byId("time").classList.toggle("past", past);
  }

  /** Show what was at a moment. */
  async goTo(ms) {
    const asked = (this.askedPast = {});
    const { lines, oldest_ms, ahead, older, reached_ms } = await get("/api/past", { at_ms: ms, limit: 2 * PAGE, ...this.wanted });
    if (asked !== this.askedPast) return; // the slider has moved on
    this.about.oldest_ms = oldest_ms;
    this.past = new Model();
    this.past.reached = older === null ? null : reached_ms; // how far back was searched, when not all was
    this.past.ahead = ahead; // where later messages go on
    for (const line of lines) this.past.put(line);
    this.at(ms);
    this.diagram.toEnd();
    this.onMode("past");
  }

  at(ms) {
    this.moment = ms;
    const slider = byId("t-slider");
    const oldest = this.about.oldest_ms ?? this.now;
    slider.value = String(Math.round(((ms - oldest) / Math.max(1, this.now - oldest)) * SLIDER));
    this.showTime(ms);
    this.diagram.show(this.past, ms);
    this.tell();
  }

  toNow() {
    this.stop();
    this.askedPast = null;
    this.past = null;
    this.moment = null;
    byId("t-slider").value = String(SLIDER);
    this.showTime(this.now, false);
    this.showNow();
    this.onMode("live");
  }

  playOrStop() {
    if (this.playing) this.stop();
    else if (this.past) this.play();
    else this.goTo(this.about.oldest_ms ?? this.now).then(() => this.play());
  }

  play() {
    this.playing = true;
    this.showPlay("pause", "Stop");
    let before = performance.now();
    const step = (now) => {
      if (!this.playing || !this.past) return;
      const speed = Number(byId("t-speed").value);
      const ms = this.moment + (now - before) * speed;
      before = now;
      const following = this.diagram.atEnd;
      this.at(Math.round(this.skipGap(ms, speed)));
      if (following) this.diagram.toEnd();
      this.loadAhead();
      if (this.moment >= this.now) this.toNow();
      else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  /** Nobody wants to watch an empty hour: a gap of more than three seconds (of the watcher) is cut short. */
  skipGap(ms, speed) {
    const next = this.past.all[this.past.sentBy(ms)];
    if (next) return next.sent_ms - ms > 3000 * speed ? next.sent_ms - 500 * speed : ms;
    return this.past.ahead === null && !this.loadingAhead ? this.now : ms;
  }

  async loadAhead() {
    const model = this.past;
    if (this.loadingAhead || model.ahead === null || model.all.length - model.sentBy(this.moment) > PAGE / 2) return;
    this.loadingAhead = true;
    try {
      const { lines, ahead } = await get("/api/past", { ahead: model.ahead, limit: PAGE, ...this.wanted });
      for (const line of lines) model.put(line);
      model.ahead = ahead;
    } finally {
      this.loadingAhead = false;
    }
  }

  showPlay(sign, word) {
    byId("t-play").querySelector("use").setAttribute("href", `#i-${sign}`);
    byId("t-play").setAttribute("aria-label", word);
  }

  stop() {
    this.playing = false;
    this.showPlay("play", "Play");
  }
}

/** Give a choice those options, and the one that is chosen also where it is not among them. */
function fill(select, values, chosen, shown) {
  if (chosen && !values.includes(chosen)) values.push(chosen);
  values.sort();
  if (select.known?.length === values.length && values.every((value, n) => value === select.known[n])) return;
  select.known = values;
  select.replaceChildren(select.options[0], ...values.map((value) => new Option(shown(value), value)));
  select.value = chosen ?? "";
}
