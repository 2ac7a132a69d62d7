// Asking the server. Every answer is JSON; what went wrong is an Error whose message is a sentence, and whose status is
// that of the answer, or 0 when there was none.

async function reach(path, how) {
  try {
    return await fetch(path, how);
  } catch (error) {
    if (how.signal?.aborted) throw error; // nobody wants the answer any more
    throw Object.assign(new Error("the server cannot be reached; it may have been stopped"), { status: 0 });
  }
}

async function read(response) {
  let data = null;
  try {
    data = await response.json();
  } catch {
    /* not JSON: the status has to do */
  }
  if (!response.ok) {
    const error = new Error(data?.error?.message ?? `the server answered ${response.status}`);
    error.status = response.status;
    error.code = data?.error?.code;
    error.type = data?.error?.type;
    throw error;
  }
  return data;
}

export async function get(path, query = {}, signal = undefined) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const text = words.toString();
  return read(await reach(text ? `${path}?${text}` : path, { headers: { Accept: "application/json" }, signal }));
}

export async function post(path, body) {
  return read(await reach(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}
