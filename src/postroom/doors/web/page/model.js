// The messages that the page holds, in the order of the room, and which of them are wanted.

/** Whether a line passes the filter. */
export function passes(line, wanted) {
  if (wanted.agent && wanted.agent !== line.from_agent && wanted.agent !== line.to_agent && wanted.agent !== line.claimed_by) return false;
  if (wanted.channel && wanted.channel !== line.channel) return false;
  if (wanted.type && wanted.type !== line.type) return false;
  if (wanted.text && !`${line.text ?? ""}\n${line.type}\n${line.id}\n${line.error ?? ""}`.toLowerCase().includes(wanted.text.toLowerCase())) return false;
  return true;
}

/** The first place in a sorted list whose item is not before: `isBefore(item)` is true up to there. */
function firstNot(list, isBefore) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(list[middle])) low = middle + 1;
    else high = middle;
  }
  return low;
}

export class Model {
  constructor() {
    this.all = []; // sorted by id
    this.shown = []; // those that pass the filter
    this.byId = new Map();
    this.answers = new Map(); // question's id -> answer's id
    this.wanted = {};
    this.channels = new Set();
    this.types = new Set();
    this.news = 0; // counts what changes lanes, or who is shown
    this.onLanes = () => {};
  }

  get isFiltered() {
    return Object.values(this.wanted).some(Boolean);
  }

  filter(wanted) {
    this.wanted = wanted;
    this.shown = this.isFiltered ? this.all.filter((line) => passes(line, wanted)) : this.all.slice();
  }

  /** A message, new or changed. Returns whether it is a new one that is shown. */
  put(line) {
    const known = this.byId.get(line.id);
    if (known) {
      const before = this.isFiltered && passes(known, this.wanted);
      line.ledger ??= known.ledger;
      const mate = known.claimed_by !== line.claimed_by;
      for (const name in known) if (!(name in line)) delete known[name];
      Object.assign(known, line);
      known.stamp = (known.stamp ?? 0) + 1;
      if (mate) this.onLanes(known);
      if (this.isFiltered && before !== passes(known, this.wanted)) this.filter(this.wanted);
      return false;
    }
    this.byId.set(line.id, line);
    if (line.answer_to) this.answers.set(line.answer_to, line.id);
    this.channels.add(line.channel);
    this.types.add(line.type);
    this.onLanes(line);
    insert(this.all, line);
    if (this.isFiltered && !passes(line, this.wanted)) return false;
    insert(this.shown, line);
    return true;
  }

  /** Forget the oldest, so that so many are left. Returns how many of those that are shown went. */
  trim(most) {
    const surplus = this.all.length - most;
    if (surplus <= 0) return 0;
    const last = this.all[surplus - 1].id;
    for (let at = 0; at < surplus; at++) {
      const line = this.all[at];
      this.byId.delete(line.id);
      if (line.answer_to) this.answers.delete(line.answer_to);
    }
    this.all.splice(0, surplus);
    const gone = firstNot(this.shown, (line) => line.id <= last);
    this.shown.splice(0, gone);
    return gone;
  }

  /** Older messages, all of them before those that are here. Returns how many more are shown. */
  prepend(lines) {
    const before = this.shown.length;
    for (const line of lines) this.put(line);
    return this.shown.length - before;
  }

  placeOf(id) {
    const at = firstNot(this.shown, (line) => line.id < id);
    return this.shown[at]?.id === id ? at : -1;
  }

  /** How many of those that are shown had been sent at a moment. */
  sentBy(ms) {
    return firstNot(this.shown, (line) => line.sent_ms <= ms);
  }
}

function insert(list, line) {
  const last = list[list.length - 1];
  if (!last || last.id < line.id) list.push(line);
  else list.splice(firstNot(list, (each) => each.id < line.id), 0, line);
}

/** How a message looked at a moment, told from its ledger: its look, and who held it. */
export function lookAt(line, ms, lookAfter) {
  let look = "stored";
  let holder = null;
  let tries = 0;
  for (const [event, time, agent] of line.ledger ?? []) {
    if (time > ms) break;
    look = lookAfter[event] ?? look;
    if (event === "claimed") {
      holder = agent;
      tries++;
    }
  }
  return { look, claimed_by: holder, deliveries: tries };
}
