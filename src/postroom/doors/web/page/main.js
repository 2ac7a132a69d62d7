// The page: which view is open, and the one stream through which everything comes.
import { byId, el, icon, set } from "./dom.js";
import { get } from "./api.js";
import { count, plain, setNow } from "./text.js";
import { Conversation } from "./conversation.js";
import { Detail } from "./detail.js";
import { Agents } from "./agents.js";
import { Mailboxes } from "./mailboxes.js";
import { Board } from "./board.js";
import { Sessions } from "./sessions.js";
import { DeadLetters } from "./dead.js";
import { Questions } from "./questions.js";
import { compose, keys, signIn, toast } from "./dialogs.js";
import { VIEWS, go, here, linkTo } from "./place.js";

const HIDDEN_MS = 20000; // a page that nobody sees lets go of the stream after this time

class Page {
  constructor(about) {
    this.about = about;
    this.cursor = null;
    this.stream = null;
    this.last = {}; // what was looked for in each view when it was left
    this.detail = new Detail(about, { onReveal: (line) => this.reveal(line), onClose: () => this.close() });
    const open = (id) => this.open(id);
    this.conversation = new Conversation(about, { onPick: open, onMode: (how) => this.say(how) });
    this.views = {
      agents: new Agents(byId("view-agents"), { open }),
      mailboxes: new Mailboxes(byId("view-mailboxes")),
      board: new Board(byId("view-board")),
      sessions: new Sessions(byId("view-sessions")),
      dead: new DeadLetters(byId("view-dead"), { open }),
    };
    this.questions = new Questions(byId("questions"));
    set(byId("room"), about.room);
    byId("room").title = about.room;
    this.showWho(about);
    this.wire();
  }

  wire() {
    for (const tab of byId("tabs").children) tab.addEventListener("click", () => this.visit(tab.dataset.view));
    byId("tabs").addEventListener("keydown", (event) => this.tabKey(event));
    addEventListener("hashchange", () => this.turn());
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault(); // the address says what is shown, not where the focus is
      byId("main").focus();
    });
    byId("write").addEventListener("click", () => compose(this.about));
    byId("who").addEventListener("click", async () => this.showWho(await signIn()));
    addEventListener("postroom-who", async () => this.showWho(await get("/api/about")));
    byId("help").addEventListener("click", () => keys(this.about));
    byId("theme").addEventListener("click", turnTheme);
    addEventListener("keydown", (event) => this.key(event));
    let hiding = 0;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hiding);
      if (document.hidden) hiding = setTimeout(() => this.leave(), HIDDEN_MS);
      else if (!this.stream) this.join();
    });
  }

  /** Who the person is: of interest only where a token says so. */
  showWho(known) {
    if (!known) return;
    const { name, human, tokens } = Object.assign(this.about, { name: known.name, human: known.human, tokens: known.tokens });
    const button = byId("who");
    button.hidden = name !== null && !tokens;
    button.classList.toggle("alarm", name === null);
    button.setAttribute("aria-label", name === null ? "Who are you?" : `You are ${plain(name)}`);
    set(button.lastElementChild, name === null ? "Who are you?" : `${plain(name)}${human ? "" : " (agent)"}`);
  }

  get view() {
    return here().view;
  }

  /** Open a view as it was left; an open message stays open. */
  visit(view) {
    const { query } = here();
    go(view, { ...(view === this.view ? query : this.last[view]), message: query.message });
  }

  /** Show what the address says. */
  turn() {
    const { view, query } = here();
    this.last[view] = query;
    for (const tab of byId("tabs").children) {
      const chosen = tab.dataset.view === view;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    for (const name of VIEWS) byId(`view-${name}`).hidden = name !== view;
    document.title = `${byId("tabs").querySelector(`[data-view="${view}"] span`).textContent} · Postroom`;
    if (view === "conversation") {
      this.conversation.want(query);
      this.conversation.diagram.relay();
    }
    if (query.message) {
      this.detail.open(query.message);
      this.conversation.diagram.choose(query.message);
    } else this.detail.close();
    const turned = `${view} ${query.pick ?? ""}`;
    if (turned === this.turned && this.stream) return;
    this.turned = turned;
    this.join();
  }

  // The stream

  async join() {
    this.leave();
    const turn = (this.joining = {});
    try {
      if (this.cursor === null) this.cursor = await this.conversation.begin();
    } catch (error) {
      this.lost(error);
      return;
    }
    if (turn !== this.joining) return; // another view was opened meanwhile
    const words = new URLSearchParams({ after: this.cursor });
    if (this.view !== "conversation") words.set("view", this.view);
    words.set("pick", here().query.pick ?? "");
    const stream = (this.stream = new EventSource(`/api/live?${words}`));
    const on = (name, take) => stream.addEventListener(name, (event) => stream === this.stream && take(JSON.parse(event.data), event));
    on("frame", (frame, event) => this.frame(frame, event.lastEventId));
    on("pulse", (pulse) => this.pulse(pulse));
    on("view", (data) => this.views[data.view]?.show(data));
    stream.addEventListener("open", () => this.say(this.conversation.isPast ? "past" : "live"));
    stream.addEventListener("error", () => {
      if (stream !== this.stream) return;
      if (stream.readyState === EventSource.CLOSED) this.refused();
      else this.say("lost");
    });
  }

  leave() {
    this.stream?.close();
    this.stream = null;
  }

  /** The server does not take up from there (the cursor expired, it was started anew): begin from what is there now. */
  refused() {
    this.leave();
    this.cursor = null;
    this.say("lost");
    clearTimeout(this.again);
    this.again = setTimeout(() => this.join(), 1500);
  }

  lost(error) {
    this.say("lost");
    if (error.status === 401) return this.say("shut"); // trying again would not help
    clearTimeout(this.again);
    this.again = setTimeout(() => this.join(), 1500);
  }

  frame({ lines, jumped }, cursor) {
    if (jumped) {
      // join anew: what comes while the latest are fetched would otherwise be put beside them, and be lost
      this.cursor = null;
      this.join();
      return;
    }
    this.cursor = cursor;
    if (lines.length) {
      this.conversation.take(lines);
      this.detail.changed(lines);
    }
  }

  pulse(pulse) {
    setNow(pulse.time_ms);
    this.conversation.pulse(pulse);
    this.questions.show(pulse.questions);
    const totals = Object.entries(pulse.states).filter(([state]) => ["stored", "claimed", "acked", "answered", "dead"].includes(state));
    const shown = totals.map(([state, n]) => `${state} ${n}`).join();
    if (shown !== this.totals) {
      this.totals = shown;
      byId("totals").replaceChildren(
        ...totals.map(([state, n]) => el(`a.look-${state}`, { href: linkTo("conversation", { state }), title: `Show what is ${state}` }, icon(state), el("b", null, count(n)), ` ${state}`)),
      );
      const dead = pulse.states.dead ?? 0;
      set(byId("dead-count"), dead > 999 ? `${Math.floor(dead / 1000)}k` : dead ? String(dead) : "");
    }
  }

  say(how) {
    byId("live").dataset.how = how;
    set(byId("live").lastElementChild, { live: "live", past: "in the past", lost: "reconnecting", shut: "closed" }[how] ?? how);
    const words = { lost: "The server does not answer. This page may be out of date; it continues when the server is back.", shut: "The server was restarted with a new token. Open the address that `postroom web` printed." }[how];
    byId("notice").hidden = !words;
    if (words) set(byId("notice"), words);
  }

  // Going about

  open(id) {
    const { view, query } = here();
    go(view, { ...query, message: id }, Boolean(query.message)); // back closes it, however many were looked at
  }

  close() {
    const { view, query } = here();
    this.conversation.diagram.choose(null);
    go(view, { ...query, message: "" }, true);
  }

  /** Show a message among others: where one is, or, when it is not there, as it was when it was sent. */
  async reveal({ id, sent_ms }) {
    const { conversation } = this;
    if (this.view === "conversation" && conversation.model.placeOf(id) >= 0) this.open(id);
    else {
      go("conversation", { message: id });
      this.turn();
    }
    if (conversation.model.placeOf(id) < 0) await conversation.goTo(sent_ms);
    conversation.diagram.choose(id);
    conversation.diagram.reveal(id);
  }

  /** Only the chosen tab can be reached with Tab; the arrows, Home and End go on from there. */
  tabKey(event) {
    const at = VIEWS.indexOf(this.view);
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    const next = byId("tabs").children[(to + VIEWS.length) % VIEWS.length];
    this.visit(next.dataset.view);
    next.focus();
    event.preventDefault();
    event.stopPropagation();
  }

  key(event) {
    const field = event.target.closest?.("input:not([type=range], [type=checkbox]), textarea, select, dialog");
    // the focus may stay in a dialog for a moment after it was closed
    const typing = field && (!field.closest("dialog") || byId("dialog").open);
    if (event.key === "Escape" && !byId("dialog").open) {
      if (typing) event.target.blur();
      else this.detail.close();
      return;
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const number = Number(event.key);
    if (number >= 1 && number <= VIEWS.length) this.visit(VIEWS[number - 1]);
    else if (event.key === "/" || event.key === "s") {
      this.visit("conversation");
      byId("view-conversation").hidden = false; // now, not when the address has changed: the next key goes into the field
      byId(event.key === "/" ? "f-text" : "f-search").focus();
    } else if (event.key === "?") keys(this.about);
    else if (event.key === "w") compose(this.about);
    else if (event.key === "l") this.conversation.toNow();
    else if (event.key === " " && this.view === "conversation" && !event.target.closest?.("button, a, [type=checkbox]")) this.conversation.playOrStop();
    else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key) && this.view === "conversation" && event.target === document.body) {
      byId("scroll").focus();
      this.conversation.diagram.key(event);
    } else return;
    event.preventDefault();
  }
}

function turnTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("postroom-theme", root.dataset.theme);
}

async function begin() {
  const kept = localStorage.getItem("postroom-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  // the key is in a cookie by now: it need not stand in the address, and not in the history
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  const about = await get("/api/about");
  setNow(about.now_ms);
  const page = new Page(about);
  page.turn();
}

// what a button or the slider asked for and did not get is told; anything else is a fault of the page, and stays one
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.status === undefined) return;
  event.preventDefault();
  toast(event.reason.message, true);
});

function start() {
  begin().catch((error) => {
    if (error.status === undefined) throw error;
    toast(error.message, true);
    if (error.status !== 401) setTimeout(start, 3000);
  });
}

start();
