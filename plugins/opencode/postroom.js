// Written by `postroom install opencode`. Tells a session of new mail between its steps, and wakes it when it is idle.
import { spawn } from "node:child_process"
import { existsSync, mkdirSync, watch } from "node:fs"
import { join } from "node:path"

const COMMAND = ["postroom"]

function hook(event, session, cwd) {
  return new Promise((resolve) => {
    const child = spawn(COMMAND[0], [...COMMAND.slice(1), "hook", "opencode"], { cwd, stdio: ["pipe", "pipe", "ignore"] })
    let said = ""
    child.on("error", () => resolve(null))
    child.stdout.on("data", (part) => (said += part))
    child.on("close", () => {
      try {
        resolve(said ? JSON.parse(said) : null)
      } catch {
        resolve(null)
      }
    })
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify({ hook_event_name: event, session_id: session, cwd }))
  })
}

export const Postroom = async ({ client, directory }) => {
  let current = null
  const say = async (event) => {
    if (!current) return
    const answer = await hook(event, current, directory)
    const text = answer && (answer.text || answer.reason)
    if (text) await client.session.promptAsync({ path: { id: current }, body: { parts: [{ type: "text", text }] } })
  }
  try {
    const room = join(directory, ".postroom")
    if (existsSync(room)) {
      mkdirSync(join(room, "signals"), { recursive: true, mode: 0o700 })
      watch(join(room, "signals"), () => say("wake")).unref()
    }
  } catch {
    // it is told between its steps all the same
  }
  return {
    event: async ({ event }) => {
      if (event.type === "session.created" && !event.properties.info.parentID) {
        current = event.properties.info.id
        await hook("start", current, directory)
      }
      if (event.type === "session.idle" && event.properties.sessionID === current) await say("stop")
    },
    "tool.execute.after": async (input, output) => {
      current = current || input.sessionID
      const answer = await hook("tool", input.sessionID, directory)
      if (answer && answer.text) output.output += "\n\n" + answer.text
    },
  }
}
