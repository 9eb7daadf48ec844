// The server: which models it has, and answers as they come.

/** What the server said is wrong, in its words. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function fetched(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  throw new ServerError(response.status, found?.error?.message ?? `The server answered with status ${response.status}.`);
}

/** Names of the models. Throws ServerError. */
export async function models(key) {
  const response = await fetched("v1/models", { headers: headers(key) });
  return (await response.json()).data.map((each) => each.id);
}

/**
 * Asks for an answer; yields {text, reasoning, finish, usage} as they come, each where there is one. Throws ServerError,
 * and AbortError when `signal` stops it.
 */
export async function* answer(request, key, signal) {
  const body = JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } });
  const response = await fetched("v1/chat/completions", { method: "POST", headers: headers(key), body, signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const value = JSON.parse(data);
    if (value.error) throw new ServerError(200, value.error.message);
    const choice = value.choices[0];
    yield { text: choice?.delta.content ?? "", reasoning: choice?.delta.reasoning_content ?? "",
      finish: choice?.finish_reason ?? null, usage: value.usage ?? null };
  }
  throw new ServerError(0, "The connection ended before the answer did.");
}

/** The data of server-sent events. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      held += value;
      const parts = held.split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The connection was lost.");
  } finally {
    reader.cancel().catch(() => {});
  }
}
