// The address of what is shown: a view, its filter and the open message, after the #. A link carries all of it, and the
// browser's back button goes through it.

export const VIEWS = ["conversation", "agents", "mailboxes", "board", "sessions", "dead"];

export function here() {
  const [name, words = ""] = location.hash.slice(1).split("?", 2);
  return { view: VIEWS.includes(name) ? name : "conversation", query: Object.fromEntries(new URLSearchParams(words)) };
}

export function linkTo(view, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#${view}${words ? `?${words}` : ""}`;
}

/** Go there. With `replace`, the back button leads to where one was before the present place. */
export function go(view, query = {}, replace = false) {
  const to = linkTo(view, query);
  if (to === location.hash) return;
  if (!replace) location.hash = to;
  else {
    history.replaceState(null, "", to);
    dispatchEvent(new Event("hashchange"));
  }
}
