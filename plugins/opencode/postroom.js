// Written by `postroom install opencode`. Tells a session of new mail between its steps, and wakes it when it is idle.
import { spawn } from "node:child_process"
import { watch } from "node:fs"
import { basename, dirname } from "node:path"

const COMMAND = ["postroom"]
const EDITS = "warn"
const WRITES = ["edit", "multiedit", "write", "patch", "apply_patch"]

function hook(event, session, cwd, more = {}) {
  return new Promise((resolve) => {
    const env = EDITS === "warn" ? process.env : { ...process.env, POSTROOM_EDITS: EDITS }
    const child = spawn(COMMAND[0], [...COMMAND.slice(1), "hook", "opencode"], { cwd, env, stdio: ["pipe", "pipe", "ignore"] })
    const late = setTimeout(() => {
      child.kill("SIGKILL")
      resolve(null)
    }, 10000)
    let said = ""
    child.on("error", () => {
      clearTimeout(late)
      resolve(null)
    })
    child.stdout.on("data", (part) => (said += part))
    child.on("close", () => {
      clearTimeout(late)
      try {
        resolve(said ? JSON.parse(said) : null)
      } catch {
        resolve(null)
      }
    })
    child.stdin.on("error", () => {})
    child.stdin.end(JSON.stringify({ hook_event_name: event, session_id: session, cwd, ...more }))
  })
}

export const Postroom = async ({ client, directory }) => {
  let current = null
  let watched = null
  let watcher = null
  const say = async (event) => {
    if (!current) return
    const answer = await hook(event, current, directory)
    const text = answer && (answer.text || answer.reason)
    if (text) await client.session.promptAsync({ path: { id: current }, body: { parts: [{ type: "text", text }] } })
    if (listen(answer)) await say("wake") // what came before it listened
  }
  // Watch the file that the room names: the room may lie above this folder, elsewhere, or have been made a moment ago.
  const listen = (answer) => {
    const signal = answer && answer.signal
    if (!signal || signal === watched) return false
    try {
      if (watcher) watcher.close()
      watcher = watch(dirname(signal), (_, name) => {
        if (!name || name === basename(signal)) say("wake")
      })
      watcher.on("error", () => (watched = null))
      watcher.unref()
      watched = signal
      return true
    } catch {
      return false // it is told between its steps all the same
    }
  }
  return {
    event: async ({ event }) => {
      if (event.type === "session.created" && !event.properties.info.parentID) {
        current = event.properties.info.id
        listen(await hook("start", current, directory))
      }
      if (event.type === "session.idle" && event.properties.sessionID === current) await say("stop")
    },
    "tool.execute.before": async (input, output) => {
      if (EDITS === "off" || !WRITES.includes(input.tool)) return
      const answer = await hook("edit", input.sessionID, directory, { tool_name: input.tool, tool_input: output.args })
      if (answer && answer.decision === "deny") throw new Error(answer.reason)
    },
    "tool.execute.after": async (input, output) => {
      current = current || input.sessionID
      const answer = await hook("tool", input.sessionID, directory, { tool_name: input.tool, tool_input: input.args })
      if (answer && answer.text) output.output += "\n\n" + answer.text
    },
  }
}
