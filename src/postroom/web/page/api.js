// Asking the server. Every answer is JSON; what went wrong is an Error whose message is a sentence.

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

export async function get(path, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null));
  const text = words.toString();
  return read(await fetch(text ? `${path}?${text}` : path, { headers: { Accept: "application/json" } }));
}

export async function post(path, body) {
  return read(await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));
}
