// The conversation: the diagram, what is looked for in it, and the slider that goes back through what is kept.
import { byId, el, icon, set } from "./dom.js";
import { get } from "./api.js";
import { Model } from "./model.js";
import { Diagram, ROW } from "./diagram.js";
import { channelName, clock, count, dayAndClock, plain } from "./text.js";

const KEPT = 4000; // messages that the page holds while it follows
const KEPT_READING = 12000; // and while somebody reads further up
const PAGE = 400;
const SLIDER = 10000;

export class Conversation {
  constructor(about, { onPick, onMode }) {
    this.about = about;
    this.onMode = onMode;
    this.live = new Model();
    this.past = null;
    this.moment = null;
    this.older = null; // where older messages go on
    this.unseen = 0;
    this.diagram = new Diagram({
      lanes: byId("lanes"), scroll: byId("scroll"), sheet: byId("sheet"), lookAfter: about.look_after, me: about.name, onPick,
    });
    this.diagram.show(this.live);
    byId("legend").append(...about.looks.map((look) => el(`span.look-${look}`, null, icon(look), look)));
    this.wireFilters();
    this.wireTime();
    byId("scroll").addEventListener("scroll", () => this.scrolled(), { passive: true });
    byId("fresh").addEventListener("click", () => this.follow());
  }

  get model() {
    return this.past ?? this.live;
  }

  // Now

  async begin() {
    const { lines, cursor, older } = await get("/api/recent", { limit: PAGE });
    this.live = new Model();
    this.live.wanted = this.wanted ?? {};
    this.older = older;
    if (!this.past) this.diagram.show(this.live);
    for (const line of lines) this.live.put(line);
    this.unseen = 0;
    if (!this.past) this.diagram.toEnd();
    this.tell();
    return cursor;
  }

  /** What just happened. */
  take(lines) {
    const atEnd = !this.past && this.diagram.atEnd;
    let fresh = 0;
    for (const line of lines) fresh += this.live.put(line) ? 1 : 0;
    if (this.past) return;
    const gone = this.live.trim(atEnd ? KEPT : KEPT_READING);
    if (gone) this.older ??= "gone";
    if (atEnd) {
      this.unseen = 0;
      this.diagram.toEnd();
    } else {
      this.unseen += fresh;
      if (gone) this.diagram.shift(-gone);
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

  scrolled() {
    if (!this.past && this.diagram.atEnd && this.unseen) {
      this.unseen = 0;
      this.tell();
    }
    if (!this.past && byId("scroll").scrollTop < 20 * ROW) this.loadOlder();
  }

  async loadOlder() {
    // what was trimmed away is found by the slider: the place where older messages go on is not known any more
    if (!this.older || this.older === "gone" || this.loading) return;
    this.loading = true;
    try {
      const { lines, older } = await get("/api/older", { before: this.older, limit: PAGE, ...this.live.wanted });
      this.older = older;
      const more = this.live.prepend(lines);
      if (more && !this.past) this.diagram.shift(more);
    } finally {
      this.loading = false;
    }
  }

  tell() {
    const fresh = byId("fresh");
    fresh.hidden = this.unseen === 0;
    set(fresh, `${count(this.unseen)} new ↓`);
    const empty = byId("empty");
    empty.hidden = this.diagram.length > 0;
    if (!empty.hidden) {
      const filtered = this.model.isFiltered;
      empty.replaceChildren(
        el("h2", null, filtered ? "Nothing matches" : this.past ? "Nothing had been sent yet" : "Nothing was said yet"),
        filtered || this.past ? el("p", null, "") : el("p", null, "An arrow appears as soon as a message is stored. Try "),
        filtered || this.past ? "" : el("p", null, el("code", null, "postroom send bob 'hello' --as ada --new")),
      );
    }
    this.fillChoices();
  }

  // What is looked for

  wireFilters() {
    let waiting = 0;
    const changed = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => this.look(), 120);
    };
    for (const id of ["f-text", "f-agent", "f-channel", "f-type"]) byId(id).addEventListener("input", changed);
    byId("f-clear").addEventListener("click", () => {
      for (const id of ["f-text", "f-agent", "f-channel", "f-type"]) byId(id).value = "";
      this.look();
    });
  }

  look() {
    const wanted = { text: byId("f-text").value.trim() };
    for (const name of ["agent", "channel", "type"]) {
      const choice = byId(`f-${name}`);
      wanted[name] = choice.value;
      choice.classList.toggle("on", choice.value !== "");
    }
    this.wanted = wanted;
    this.live.filter(wanted);
    this.past?.filter(wanted);
    byId("f-clear").hidden = !this.model.isFiltered;
    this.diagram.relay();
    if (!this.past) {
      this.diagram.toEnd();
      if (this.live.isFiltered && this.diagram.length * ROW < byId("scroll").clientHeight) this.loadOlder();
    }
    this.tell();
  }

  fillChoices() {
    const agents = [...this.diagram.lanes.values()].filter((lane) => lane.kind === "agent").map((lane) => lane.name);
    fill(byId("f-agent"), agents, plain);
    fill(byId("f-channel"), [...this.model.channels], (name) => plain(channelName(name)));
    fill(byId("f-type"), [...this.model.types], plain);
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
    const { lines, oldest_ms, ahead } = await get("/api/past", { at_ms: ms, limit: 2 * PAGE });
    if (asked !== this.askedPast) return; // the slider has moved on
    this.about.oldest_ms = oldest_ms;
    this.past = new Model();
    this.past.wanted = this.wanted ?? {};
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
    this.diagram.show(this.live);
    this.diagram.toEnd();
    this.showTime(this.now, false);
    this.tell();
    this.onMode("live");
  }

  playOrStop() {
    if (this.playing) this.stop();
    else if (this.past) this.play();
    else this.goTo(this.about.oldest_ms ?? this.now).then(() => this.play());
  }

  play() {
    this.playing = true;
    set(byId("t-play").querySelector("use"), "");
    byId("t-play").querySelector("use").setAttribute("href", "#i-pause");
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
    const next = this.past.shown[this.past.sentBy(ms)];
    if (next) return next.sent_ms - ms > 3000 * speed ? next.sent_ms - 500 * speed : ms;
    return this.past.ahead === null && !this.loadingAhead ? this.now : ms;
  }

  async loadAhead() {
    const model = this.past;
    if (this.loadingAhead || model.ahead === null || model.shown.length - model.sentBy(this.moment) > PAGE / 2) return;
    this.loadingAhead = true;
    try {
      const { lines, ahead } = await get("/api/past", { ahead: model.ahead, limit: PAGE });
      for (const line of lines) model.put(line);
      model.ahead = ahead;
    } finally {
      this.loadingAhead = false;
    }
  }

  stop() {
    this.playing = false;
    byId("t-play").querySelector("use").setAttribute("href", "#i-play");
  }
}

/** Give a choice those options, keeping what is chosen. */
function fill(select, values, shown) {
  if (select.known?.length === values.length && values.every((value, n) => value === select.known[n])) return;
  select.known = [...values];
  const chosen = select.value;
  const kept = select.options[0];
  const options = values.sort().map((value) => new Option(shown(value), value));
  select.replaceChildren(kept, ...options);
  select.value = values.includes(chosen) ? chosen : "";
}
