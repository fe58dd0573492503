// JSON for reading, without parsing its numbers: 9007199254740993 stays what it is.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g;

/// The same JSON with line breaks and indents. What is no JSON stays as it is.
export function prettyJson(text) {
  const tokens = text.match(TOKEN) ?? [];
  const bare = (some) => some.replace(/\s/g, "");
  if (bare(tokens.join("")) !== bare(text)) return text;
  let out = "";
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === "{" || token === "[") {
      const isEmpty = next === "}" || next === "]";
      depth += 1;
      out += isEmpty ? token : token + line();
    } else if (token === "}" || token === "]") {
      depth = Math.max(0, depth - 1);
      const before = tokens[index - 1];
      out += before === "{" || before === "[" ? token : line() + token;
    } else if (token === ",") out += token + line();
    else if (token === ":") out += ": ";
    else out += token;
  });
  return out;
}
