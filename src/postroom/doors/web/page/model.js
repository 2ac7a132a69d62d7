// The messages that the page holds, in the order of the room.

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
    this.byId = new Map();
    this.answers = new Map(); // question's id -> answer's id
    this.agents = new Set();
    this.channels = new Set();
    this.types = new Set();
    this.onLanes = () => {};
  }

  /** A message, new or changed. Returns whether it is new. */
  put(line) {
    const known = this.byId.get(line.id);
    if (line.claimed_by) this.agents.add(line.claimed_by);
    if (known) {
      line.ledger ??= known.ledger;
      const mate = known.claimed_by !== line.claimed_by;
      for (const name in known) if (!(name in line)) delete known[name];
      const stamp = (known.stamp ?? 0) + 1;
      Object.assign(known, line, { stamp });
      if (mate) this.onLanes(known);
      return false;
    }
    this.byId.set(line.id, line);
    if (line.answer_to) this.answers.set(line.answer_to, line.id);
    this.agents.add(line.from_agent);
    if (line.to_agent) this.agents.add(line.to_agent);
    this.channels.add(line.channel);
    this.types.add(line.type);
    this.onLanes(line);
    insert(this.all, line);
    return true;
  }

  /** Forget one. */
  drop(id) {
    const at = this.placeOf(id);
    if (at < 0) return;
    const [line] = this.all.splice(at, 1);
    this.byId.delete(id);
    if (line.answer_to) this.answers.delete(line.answer_to);
  }

  /** Forget the oldest, so that so many are left. Returns how many went. */
  trim(most) {
    const surplus = Math.max(0, this.all.length - most);
    for (const line of this.all.splice(0, surplus)) {
      this.byId.delete(line.id);
      if (line.answer_to) this.answers.delete(line.answer_to);
    }
    return surplus;
  }

  /** Older messages, as they were when they were asked for: what is known of them by now stays. Returns how many are new. */
  prepend(lines) {
    let more = 0;
    for (const line of lines) if (!this.byId.has(line.id)) more += this.put(line) ? 1 : 0;
    return more;
  }

  placeOf(id) {
    const at = firstNot(this.all, (line) => line.id < id);
    return this.all[at]?.id === id ? at : -1;
  }

  /** How many had been sent at a moment. */
  sentBy(ms) {
    return firstNot(this.all, (line) => line.sent_ms <= ms);
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
