// Asking the person, and telling it: dialogs and short notes.
import { byId, el, lookChip } from "./dom.js";
import { get, post } from "./api.js";
import { plain } from "./text.js";

export function toast(text, bad = false) {
  const note = el(bad ? "div.bad" : "div", null, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), bad ? 7000 : 3500);
}

/** Show a form in the dialog. Resolves with its values, or null when it was left. `act` may fail: its sentence is shown. */
export function ask(title, body, { yes, danger = false, act = async (values) => values }) {
  const dialog = byId("dialog");
  const fault = el("p.fault", { hidden: true, role: "alert" });
  const sure = el(danger ? "button.danger.sure" : "button.primary", { type: "submit" }, yes);
  const form = el("form", { method: "dialog" }, el("h2", null, title), ...body, fault, el("div.ends", null, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), sure));
  return new Promise((resolve) => {
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      sure.disabled = true;
      try {
        result = await act(Object.fromEntries(new FormData(form)));
        dialog.close();
      } catch (error) {
        fault.textContent = error.message;
        fault.hidden = false;
        sure.disabled = false;
        if (error.type === "IdentityRefused") dispatchEvent(new Event("postroom-who")); // the page shows where to say it
      }
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    dialog.onclose = () => resolve(result);
    dialog.replaceChildren(form);
    dialog.showModal();
    (form.querySelector("input, textarea") ?? sure).focus();
  });
}

/** Ask before something is done that cannot be undone, or that others will notice. */
export function confirm(title, text, yes, act, danger = true) {
  return ask(title, [el("p.soft", null, text)], { yes, danger, act });
}

export async function compose(about, to = "") {
  let known = [];
  try {
    known = (await get("/api/views/agents")).agents.map((agent) => agent.name);
  } catch {
    /* a list of names is only a help */
  }
  const names = el("datalist", { id: "names" }, ...known.map((name) => el("option", { value: name })));
  const sent = await ask(
    "Write a message",
    [
      el("p.soft", null, nameWords(about)),
      el("div.pair", null, el("label", null, "To", (() => {
        const input = el("input", { name: "to", value: to, placeholder: "empty: any agent", autocomplete: "off" });
        input.setAttribute("list", "names");
        return input;
      })()), el("label", null, "Channel", el("input", { name: "channel", value: "general", required: true, autocomplete: "off" }))),
      el("div.pair", null, el("label", null, "Type", el("input", { name: "type", value: "message", required: true, autocomplete: "off" })), el("label", null, "Priority (10 is highest)", el("input", { name: "priority", type: "number", min: "1", max: "10", value: "5" }))),
      el("label", null, "Text, or a JSON object", el("textarea", { name: "text", rows: 5, required: true })),
      el("label.check", null, el("input", { type: "checkbox", name: "new" }), "the recipient is new"),
      names,
    ],
    {
      yes: "Send",
      act: (values) =>
        post("/api/send", {
          to: values.to.trim() || null,
          channel: values.channel.trim(),
          type: values.type.trim(),
          priority: Number(values.priority),
          payload: payloadOf(values.text),
          new: values.new === "on",
        }),
    },
  );
  if (sent) toast("Sent.");
}

function nameWords({ name, human }) {
  if (name === null) return "This room has tokens, and you have not entered yours yet: use the key at the top.";
  if (!human) return `It is sent as ${plain(name)}, as agent mail: the token does not belong to a person.`;
  return `It is sent as ${plain(name)}, marked as human: agents see that a person wrote it.`;
}

/** Let the person say who it is, by a token of the room. Resolves with what the server then knows, or null. */
export function signIn() {
  return ask(
    "Who are you?",
    [
      el("p.soft", null, "In a room with tokens, you act here under the name that your token proves. Make one with "),
      el("p", null, el("code", null, "postroom agent add NAME --human")),
      el("label", null, "Your token", el("input", { name: "token", type: "password", autocomplete: "off", spellcheck: false, placeholder: "prt_…" })),
      el("p.faint", null, "Leave it empty to sign out. The browser keeps it until it is closed, where no script can read it."),
    ],
    { yes: "Sign in", act: ({ token }) => post("/api/sign-in", { token }) },
  );
}

function payloadOf(text) {
  if (!text.trimStart().startsWith("{")) return { text };
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the text begins with a brace but is not a JSON object (${error.message})`);
  }
}

export function keys(about) {
  const list = [
    ["1 – 6", "open a view"],
    ["↑ ↓ or j k", "go from message to message"],
    ["Enter", "open the message"],
    ["Esc", "close it, or clear the search"],
    ["/", "find text"],
    ["s", "search words"],
    ["Space", "play or pause the history"],
    ["l", "back to now"],
    ["w", "write a message"],
    ["?", "this list"],
  ];
  const dialog = byId("dialog");
  dialog.onclose = null;
  dialog.replaceChildren(
    el("form", { method: "dialog" }, el("h2", null, "Keys"), el("dl", null, ...list.flatMap(([key, what]) => [el("dt", null, key), el("dd", null, what)])),
      el("h2", null, "Signs"), el("p.signs", null, ...about.looks.map(lookChip)), el("div.ends", null, el("button.primary", null, "Close"))),
  );
  dialog.showModal();
}
