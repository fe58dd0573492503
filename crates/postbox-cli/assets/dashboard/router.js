// The URL is the state: `#/dead?table=public.org_outbox&cause=c41`. After the `#`, so that a base path or a proxy in front
// changes nothing, and a link in an alert leads to what it is about.

/// The route that the address bar has now: its page, what follows it, and its query.
export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [page, ...rest] = path.split("/").map(decode);
  return { page: page || "overview", rest, query: new URLSearchParams(query ?? "") };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/// The address of a page: `to("event", ["0198…"], { table: "a" })`. What has no value is left out.
export function to(page, rest = [], query = {}) {
  const path = [page, ...rest].map(encodeURIComponent).join("/");
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given).toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

/// Goes to a page as a click on its link would.
export function go(address) {
  location.hash = address;
}

/// Changes some of the query of this page without a new step in the history: for what is typed.
export function amend(changes) {
  const { page, rest, query } = route();
  const all = { ...Object.fromEntries(query), ...changes };
  history.replaceState(null, "", to(page, rest, all));
}
