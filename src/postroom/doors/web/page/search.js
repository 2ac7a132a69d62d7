// A search through everything that the room keeps, from the newest message back, step by step, until it is over or
// somebody looks for something else. What a message says only the server knows whole: it decides.
import { get } from "./api.js";
import { Model } from "./model.js";

const STEP = 500; // hits asked for at a time
const MOST = 5000; // hits that are held; the search stops there, says so, and goes on when it is told to
const AT_ONCE = 100; // new messages asked about at a time

export const FIELDS = ["text", "search", "agent", "channel", "type", "state", "to", "free", "thread"];
const WAITING = new Set(["delayed", "notified", "retried"]); // looks of messages whose state is `stored`

/** Whether a line passes all of a filter but its text and words, of which a line has only the beginning. */
export function passes(line, wanted) {
  const state = WAITING.has(line.look) ? "stored" : line.look;
  return (
    (!wanted.agent || [line.from_agent, line.to_agent, line.claimed_by].includes(wanted.agent)) &&
    (!wanted.to || wanted.to === line.to_agent) &&
    (!wanted.free || line.to_agent == null) &&
    (!wanted.channel || wanted.channel === line.channel) &&
    (!wanted.type || wanted.type === line.type) &&
    (!wanted.state || wanted.state === state) &&
    (!wanted.thread || wanted.thread === line.id || wanted.thread === line.chain_id)
  );
}

export class Search {
  /** `onFound(before, after)`: so many more hits stand before those that were there, and so many after. */
  constructor(wanted, onFound) {
    Object.assign(this, { wanted, onFound, how: "running", older: null, reached: null, most: MOST });
    this.model = new Model();
    this.aborter = new AbortController();
    this.unsure = new Map();
  }

  end() {
    this.aborter.abort();
  }

  async run() {
    this.how = "running";
    try {
      while (this.how === "running") {
        const query = { ...this.wanted, limit: STEP, before: this.older };
        const { lines, older, reached_ms } = await get(this.older === null ? "/api/recent" : "/api/older", query, this.aborter.signal);
        this.older = older;
        this.reached = reached_ms ?? this.reached;
        const more = this.model.prepend(lines);
        this.how = older === null ? "done" : this.model.all.length >= this.most ? "stopped" : "running";
        this.onFound(more, 0);
      }
    } catch (error) {
      if (this.aborter.signal.aborted) return;
      this.how = "stopped";
      this.onFound(0, 0);
      throw error;
    }
  }

  goOn() {
    this.most = this.model.all.length + MOST;
    return this.run();
  }

  /** What just happened: hits that changed, and messages that may be hits. Returns how many are new, and how many went. */
  take(lines) {
    let fresh = 0;
    for (const line of lines) {
      const known = this.model.byId.has(line.id);
      if (!passes(line, this.wanted)) {
        if (known) this.model.drop(line.id);
      } else if (known || !(this.wanted.text || this.wanted.search)) fresh += this.model.put({ ...line }) ? 1 : 0;
      else this.unsure.set(line.id, line);
    }
    this.ask();
    const gone = this.how === "running" ? 0 : this.model.trim(this.most + MOST);
    if (gone) {
      this.how = "trimmed"; // what went is found by a search of its own: where it would go on is not known any more
      this.reached = this.model.all[0].sent_ms;
    }
    return { fresh, gone };
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      while (this.unsure.size) {
        const lines = [...this.unsure.values()].slice(0, AT_ONCE);
        const { ids } = await get("/api/among", { ...this.wanted, ids: lines.map(({ id }) => id).join() }, this.aborter.signal);
        let fresh = 0;
        for (const line of lines) if (this.unsure.get(line.id) === line) this.unsure.delete(line.id); // else it changed meanwhile
        for (const line of lines) if (ids.includes(line.id)) fresh += this.model.put({ ...line }) ? 1 : 0;
        if (fresh) this.onFound(0, fresh);
      }
    } catch (error) {
      if (!this.aborter.signal.aborted) throw error; // what was not answered is asked again with the next change
    } finally {
      this.asking = false;
    }
  }
}
