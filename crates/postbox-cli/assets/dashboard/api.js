// The admin API: requests, the session, and errors in one form.

/// What the server refused or could not do: its code, its words, and what to do next.
export class ApiError extends Error {
  constructor(status, { code = null, message, next = null }) {
    super(message);
    Object.assign(this, { status, code, next });
  }
}

/// Who looks, and what they may do; filled by [`openSession`].
export let session = { authenticated: false, login_required: true, can_change: false, read_only: false };

/// Called when the server no longer knows us.
let expired = () => {};

export function onExpired(call) {
  expired = call;
}

function address(path, query) {
  const url = new URL(`api/v1/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") url.searchParams.append(name, one);
    }
  }
  return url;
}

/// The address of the live stream.
export function streamAddress() {
  return address("stream", {});
}

/// Reads.
export async function get(path, query = {}, { signal } = {}) {
  return answer(await send(address(path, query), { signal }));
}

/// Changes something. A CSRF value that has become old is renewed once.
export async function post(path, body = {}) {
  const attempt = () => {
    const headers = { "content-type": "application/json", [session.csrf_header ?? "x-postbox-csrf"]: session.csrf ?? "" };
    return send(address(path, {}), { method: "POST", headers, body: JSON.stringify(body) });
  };
  try {
    return await answer(await attempt());
  } catch (error) {
    if (error.code !== "OUTBOX_ADMIN_CSRF") throw error;
    await openSession();
    return answer(await attempt());
  }
}

async function send(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { message: "The program does not answer.", next: "Is it still running? This page goes on by itself once it is." });
  }
}

async function answer(response) {
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    body = { error: { message: `${response.status} ${response.statusText}: not an answer of Postbox`, next: "Is a proxy in between?" } };
  }
  if (response.ok && !body.error) return body;
  const error = new ApiError(response.status, body.error ?? { message: `${response.status} ${response.statusText}` });
  if (error.status === 401 && session.authenticated) expired();
  throw error;
}

/// Asks who we are.
export async function openSession() {
  session = await get("session");
  return session;
}

/// Turns a token into a session.
export async function login(token) {
  session = await post("login", { token });
  return session;
}

export async function logout() {
  session = await post("logout");
  return session;
}

/// The path of a table's resource.
export function at(table, ...rest) {
  return ["tables", table, ...rest].map(encodeURIComponent).join("/");
}

/// Why changes are not possible now, or `null`.
export function refused() {
  if (session.can_change) return null;
  if (session.read_only) return "This dashboard is read-only: use the command line";
  return "You are logged in as a viewer: changes need an operator's token";
}
