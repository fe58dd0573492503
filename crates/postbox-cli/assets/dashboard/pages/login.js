// Login: a token becomes a cookie that scripts cannot read.

import { login } from "../api.js";
import { fill, h } from "../dom.js";
import { failure } from "../parts.js";

export function show(app, entered) {
  const problem = h("div", { "aria-live": "assertive" });
  const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-help" });
  const go = h("button", { type: "submit", class: "is-main" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await login(token.value);
      await entered();
    } catch (error) {
      fill(problem, failure(error));
      go.disabled = false;
      token.select();
    }
  };
  fill(
    app,
    h(
      "main",
      { class: "main" },
      h(
        "form",
        { class: "card login stack", submit },
        h("h1", {}, "Postbox"),
        h("p", { class: "soft", id: "token-help" }, "Log in with a viewer's token to look, or an operator's to change things. They are in the configuration of the program that serves this page."),
        h("label", { for: "token" }, "Token", token),
        problem,
        h("div", {}, go),
      ),
    ),
  );
  token.focus();
}
