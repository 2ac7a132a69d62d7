// The sequence diagram. Only the rows that can be seen exist; they are used again for others when the sheet moves, and
// are touched only when what they show has changed, so it costs the same for a hundred messages and a hundred thousand.
import { el, icon, set } from "./dom.js";
import { channelName, clock, dueWords, plain, say, shortened } from "./text.js";
import { lookAt } from "./model.js";

export const ROW = 36;
const SPARE = 4;
const MAX_BARS = 60;
const LETTER = 7.4; // of a lane's name, at most, in pixels
const LANE_LEAST = 104;
const LANE_LEAST_SMALL = 96;

export class Diagram {
  constructor({ lanes, scroll, sheet, signs, lookAfter, me, onPick }) {
    Object.assign(this, { lanesEl: lanes, scroll, sheet, signs, lookAfter, me, onPick });
    this.under = el("div.under");
    this.over = el("div.over");
    sheet.append(this.under, this.over);
    this.model = null;
    this.moment = null; // null: now
    this.lanes = new Map(); // key -> lane
    this.layout = 0;
    this.slots = [];
    this.bars = [];
    this.chosen = null;
    this.gone = new Set();
    this.sized = "";
    scroll.addEventListener("scroll", () => {
      this.lanesEl.scrollLeft = scroll.scrollLeft;
      this.ask();
    }, { passive: true });
    new ResizeObserver(() => {
      this.relay();
      const chosen = this.model?.byId.get(this.chosen);
      if (chosen && scroll.clientWidth) this.revealAcross(chosen); // the drawer that it opened takes room from it
    }).observe(scroll);
    this.over.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row) return;
      const line = this.model.byId.get(row.dataset.id);
      if (line) this.revealAcross(line);
      this.choose(row.dataset.id, true);
    });
    scroll.addEventListener("keydown", (event) => this.key(event));
    signs.forEach((sign, n) => sign.addEventListener("click", () => (scroll.scrollLeft += (n ? 1 : -1) * (this.view - this.gutter) * 0.8)));
  }

  // What is shown

  show(model, moment = null) {
    if (this.model !== model) {
      this.model = model;
      this.lanes.clear();
      model.onLanes = (line) => this.meet(line);
      for (const line of model.all) this.meet(line);
      this.relay();
    }
    this.moment = moment;
    this.ask();
  }

  get length() {
    return this.moment === null ? this.model.all.length : this.model.sentBy(this.moment);
  }

  get atEnd() {
    return this.scroll.scrollTop + this.scroll.clientHeight >= this.scroll.scrollHeight - ROW;
  }

  toEnd() {
    this.resize();
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.ask();
  }

  /** Rows were put before or taken from the front: what is seen stays where it is. */
  shift(rows) {
    this.resize();
    this.scroll.scrollTop += rows * ROW;
    this.ask();
  }

  // Lanes

  meet(line) {
    this.lane(line.from_agent, "agent", line.lane === "human");
    if (line.to_agent != null) this.lane(line.to_agent, "agent", false);
    else this.lane(line.channel, "box", false);
    if (line.claimed_by != null) this.lane(line.claimed_by, "agent", false);
  }

  lane(name, kind, human) {
    const key = (kind === "box" ? "#" : "@") + name;
    let lane = this.lanes.get(key);
    if (!lane) {
      lane = { key, name, kind, human: human || name === this.me, at: this.lanes.size };
      this.lanes.set(key, lane);
      this.unlaid = true;
      this.ask();
    }
    return lane;
  }

  relay() {
    this.unlaid = true;
    this.ask();
  }

  lay() {
    this.unlaid = false;
    this.layout++;
    const small = innerWidth <= 640;
    const view = (this.view = this.scroll.clientWidth);
    this.gutter = small ? 82 : 118;
    const many = Math.max(1, this.lanes.size);
    // always in the same order, whatever was loaded and whichever moment is shown: agents by name, then channels
    const ordered = [...this.lanes.values()].sort(inOrder);
    ordered.forEach((lane, at) => (lane.at = at));
    this.laneWidth = Math.min(340, Math.max(small ? LANE_LEAST_SMALL : LANE_LEAST, (view - this.gutter - 12) / many));
    this.width = Math.max(view, Math.ceil(this.gutter + this.laneWidth * many));
    const letters = 2 * Math.floor(small ? (this.laneWidth - 24) / (LETTER - 1) : (this.laneWidth - 36) / LETTER); // in two lines
    const heads = [];
    const stems = [];
    for (const lane of ordered) {
      const x = this.x(lane);
      const kind = lane.kind === "box" ? "box" : lane.human ? "human" : this.gone.has(lane.name) ? "gone" : "agent";
      const name = lane.kind === "box" ? `# ${channelName(lane.name)}` : lane.name;
      const head = el(`div.lane.${kind}`, { title: plain(lane.name) }, el("b", { said: shortened(name, letters) }));
      head.style.width = `${this.laneWidth - 10}px`;
      head.style.transform = `translateX(${x - this.laneWidth / 2 + 5}px)`;
      heads.push(head);
      const stem = el(`div.stem.${kind}`);
      stem.style.transform = `translateX(${x}px)`;
      stems.push(stem);
    }
    this.lanesEl.replaceChildren(...heads);
    this.under.replaceChildren(...stems, ...this.bars);
    this.lanesEl.scrollLeft = this.scroll.scrollLeft;
    this.sized = "";
  }

  /** How many lanes lie beside what is seen. */
  showSigns() {
    const part = this.laneWidth * 0.3; // a lane whose name is cut counts too
    const beside = [0, 0];
    for (const lane of this.lanes.values()) {
      if (this.x(lane) < this.panned + part) beside[0]++;
      else if (this.x(lane) > this.panned + this.view - part) beside[1]++;
    }
    this.signs.forEach((sign, n) => {
      sign.hidden = beside[n] === 0;
      const many = innerWidth <= 640 ? `+${beside[n]}` : `${beside[n]} more`;
      sign.textContent = n ? `${many} ▸` : `◂ ${many}`;
      sign.setAttribute("aria-label", `${beside[n]} more lanes to the ${n ? "right" : "left"}`);
    });
  }

  x(lane) {
    return Math.round(this.gutter + this.laneWidth * (lane.at + 0.5));
  }

  markGone(names) {
    const same = names.size === this.gone.size && [...names].every((name) => this.gone.has(name));
    if (!same) {
      this.gone = names;
      this.relay();
    }
  }

  // Drawing

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.model && this.scroll.clientHeight) this.draw();
    });
  }

  resize() {
    if (this.unlaid) this.lay();
    const size = `${this.width}x${this.length * ROW + 12}`;
    if (size === this.sized) return;
    this.sized = size;
    this.sheet.style.width = `${this.width}px`;
    this.sheet.style.height = `max(100%, ${this.length * ROW + 12}px)`;
  }

  draw() {
    this.resize();
    if (this.panned !== this.scroll.scrollLeft) {
      this.panned = this.scroll.scrollLeft;
      this.layout++; // what stands at the edge is another now
    }
    if (this.signed !== this.layout) {
      this.signed = this.layout;
      this.showSigns();
    }
    const length = this.length;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - SPARE);
    const wanted = Math.ceil(this.scroll.clientHeight / ROW) + 2 * SPARE;
    while (this.slots.length < wanted) this.slots.push(this.newSlot());
    const last = Math.min(length, first + this.slots.length);
    const lines = this.model.all;
    for (let n = 0; n < this.slots.length; n++) {
      // the row of place p is always the slot p modulo their number: scrolling by one changes one
      const at = first + ((n - first) % this.slots.length + this.slots.length) % this.slots.length;
      if (at < last) this.fill(this.slots[n], lines[at], at);
      else this.hide(this.slots[n]);
    }
    this.drawBars(first, last);
  }

  newSlot() {
    const state = icon("stored");
    state.classList.add("state");
    const kind = el("em");
    const due = el("b.due");
    const text = el("span.said");
    const slot = {
      time: el("time"), state, use: state.firstChild, arrow: el("div.arrow"), hop: el("div.hop"), kind, due, text,
      label: el("div.label", null, kind, due, text), count: el("div.count"), shows: "", place: -1, line: null,
    };
    slot.row = el("div.row", { role: "option" }, slot.time, slot.state, slot.label, slot.arrow, slot.hop, slot.count);
    this.over.append(slot.row);
    return slot;
  }

  hide(slot) {
    if (slot.shows === "hidden") return;
    slot.shows = "hidden";
    slot.line = null;
    slot.row.hidden = true;
    slot.row.removeAttribute("data-id");
    slot.row.removeAttribute("data-look");
  }

  fill(slot, line, at) {
    const then = this.moment === null ? null : lookAt(line, this.moment, this.lookAfter);
    const look = then?.look ?? line.look;
    const holder = then ? then.claimed_by : line.claimed_by;
    const tries = then ? then.deliveries : line.deliveries ?? 0;
    const kin = this.kin?.has(line.id) ?? false;
    const shows = `${line.id} ${line.stamp ?? 0} ${look} ${holder ?? ""} ${this.layout} ${this.chosen === line.id} ${kin}`;
    if (slot.place !== at) {
      slot.place = at;
      slot.row.style.transform = `translateY(${at * ROW}px)`;
    }
    if (slot.shows === shows) return;
    const other = slot.line !== line || slot.stamp !== line.stamp;
    slot.shows = shows;
    slot.line = line;
    slot.stamp = line.stamp;
    slot.row.hidden = false;
    slot.row.className = `row look-${look}${line.answer_to ? " answer" : ""}${this.chosen === line.id ? " chosen" : ""}${kin ? " kin" : ""}`;
    slot.row.dataset.look = look;
    if (slot.look !== look) {
      slot.look = look;
      slot.use.setAttribute("href", `#i-${look}`);
    }
    if (other) {
      slot.row.dataset.id = line.id;
      slot.row.id = `m-${line.id}`;
      slot.time.textContent = clock(line.sent_ms, innerWidth > 640);
      slot.kind.textContent = line.type === "message" || line.answer_to ? "" : plain(line.type);
      say(slot.text, line.text ?? "");
    }
    const due = then || !line.due_ms ? "" : dueWords(line);
    set(slot.due, due);
    slot.row.setAttribute("aria-label", `${plain(line.from_agent)} to ${plain(line.to_agent ?? line.channel)}, ${plain(line.type)}, ${look}${due && `, ${due}`}: ${plain(line.text ?? "")}`);
    slot.row.setAttribute("aria-selected", String(this.chosen === line.id));
    this.place(slot, line, holder, tries);
  }

  place(slot, line, holder, tries) {
    const from = this.x(this.lane(line.from_agent, "agent", false));
    const to = this.x(line.to_agent != null ? this.lane(line.to_agent, "agent", false) : this.lane(line.channel, "box", false));
    const left = Math.min(from, to);
    const self = from === to;
    const wide = self ? 36 : Math.abs(to - from);
    slot.arrow.className = `arrow ${self ? "self" : to > from ? "right" : "left"}`;
    slot.arrow.style.left = `${left}px`;
    slot.arrow.style.width = `${wide}px`;
    this.placeLabel(slot, left, wide);
    const passed = line.to_agent == null && holder != null ? this.x(this.lane(holder, "agent", false)) : null;
    slot.hop.hidden = passed === null || passed === to;
    if (!slot.hop.hidden) {
      slot.hop.className = `hop ${passed > to ? "right" : "left"}${passed > to === from > to ? " back" : ""}`;
      slot.hop.style.left = `${Math.min(passed, to)}px`;
      slot.hop.style.width = `${Math.abs(passed - to)}px`;
    }
    slot.count.hidden = tries < 2;
    if (tries >= 2) {
      slot.count.textContent = `×${tries}`;
      slot.count.style.left = `${to + (to >= from ? 6 : -26)}px`;
    }
  }

  /** Above the arrow; when that lies beside what is seen, at the edge, with a sign that says where it is. */
  placeLabel(slot, left, wide) {
    const seenFrom = this.panned + Math.max(0, this.gutter - 8 - this.panned);
    const seenTo = this.panned + this.view; // as it was when the lanes were laid: asking for it here would cost a layout for each row
    const off = left > seenTo - 8 ? "right" : left + wide < seenFrom ? "left" : "";
    const room = off ? Math.min(250, seenTo - seenFrom - 12) : Math.max(wide, Math.min(250, this.width - 8));
    const start = off === "right" ? seenTo - room - 8 : off === "left" ? seenFrom + 4 : Math.max(this.gutter - 8, Math.min(left + wide / 2 - room / 2, this.width - room - 4));
    slot.label.className = off ? `label off-${off}` : "label";
    slot.label.style.left = `${start}px`;
    slot.label.style.width = `${room}px`;
  }

  /** Where somebody works on a question: from its row to that of its answer. */
  drawBars(first, last) {
    const lines = this.model.all;
    const bars = [];
    for (let at = first; at < last && bars.length < MAX_BARS; at++) {
      const line = lines[at];
      const answer = this.model.answers.get(line.id);
      if (answer !== undefined) {
        const end = this.model.placeOf(answer);
        if (end > at && end < this.length) bars.push([at, end, line.to_agent ?? lines[end].from_agent]);
      } else if (line.answer_to) {
        const start = this.model.placeOf(line.answer_to);
        if (start >= 0 && start < first) bars.push([start, at, line.from_agent]);
      }
    }
    while (this.bars.length < bars.length) {
      this.bars.push(el("div.bar"));
      this.under.append(this.bars.at(-1));
    }
    this.bars.forEach((bar, n) => {
      const given = bars[n];
      const shows = given ? `${given.join(" ")} ${this.layout}` : "";
      if (bar.shows === shows) return;
      bar.shows = shows;
      bar.hidden = !given;
      if (given) {
        bar.style.height = `${(given[1] - given[0]) * ROW}px`;
        bar.style.transform = `translate(${this.x(this.lane(given[2], "agent", false)) - 4}px, ${given[0] * ROW + 25}px)`;
      }
    });
  }

  // Choosing

  choose(id, open = false) {
    this.chosen = id;
    const line = this.model.byId.get(id);
    this.kin = new Set([line?.answer_to, this.model.answers.get(id)].filter(Boolean));
    if (id) this.scroll.setAttribute("aria-activedescendant", `m-${id}`);
    this.ask();
    if (open && id) this.onPick(id);
  }

  reveal(id) {
    const at = this.model.placeOf(id);
    if (at < 0) return false;
    const top = at * ROW;
    const { scrollTop, clientHeight } = this.scroll;
    if (top < scrollTop + ROW) this.scroll.scrollTop = top - ROW;
    else if (top > scrollTop + clientHeight - 2 * ROW) this.scroll.scrollTop = top - clientHeight + 2 * ROW;
    this.revealAcross(this.model.all[at]);
    return true;
  }

  /** Let an arrow that lies beside what is seen come into view. */
  revealAcross(line) {
    if (this.unlaid) this.lay();
    const ends = [this.lane(line.from_agent, "agent", false), line.to_agent != null ? this.lane(line.to_agent, "agent", false) : this.lane(line.channel, "box", false)].map((lane) => this.x(lane));
    const { scrollLeft, clientWidth } = this.scroll;
    const beside = Math.min(...ends) > scrollLeft + clientWidth - 8 || Math.max(...ends) < scrollLeft;
    if (beside) this.scroll.scrollLeft = (ends[0] + ends[1]) / 2 - clientWidth / 2;
  }

  key(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 12, PageUp: -12, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Enter" && this.chosen) this.onPick(this.chosen);
    else if (step === undefined || event.ctrlKey || event.metaKey) return;
    else {
      const now = this.chosen ? this.model.placeOf(this.chosen) : -1;
      // the first key chooses the last message that is seen
      const seen = Math.floor((this.scroll.scrollTop + this.scroll.clientHeight) / ROW) - 1;
      const at = Math.max(0, Math.min(this.length - 1, now >= 0 || Math.abs(step) > 1e6 ? now + step : seen));
      if (this.model.all[at]) {
        this.choose(this.model.all[at].id);
        this.reveal(this.chosen);
      }
    }
    event.preventDefault();
  }
}

function inOrder(a, b) {
  if (a.kind !== b.kind) return a.kind === "agent" ? -1 : 1;
  return a.name < b.name ? -1 : 1;
}
