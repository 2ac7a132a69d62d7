// The plugin as a package: it adds the server as well, which `postroom install opencode` writes into opencode.json.
import { Postroom as Hooks } from "./postroom.js"

const SERVER = {
  "type": "local",
  "command": [
    "postroom",
    "mcp"
  ],
  "environment": {
    "POSTROOM_HOST": "opencode"
  },
  "enabled": true,
  "timeout": 20000
}

export const Postroom = async (input) => ({
  ...(await Hooks(input)),
  config: async (config) => {
    config.mcp = { postroom: SERVER, ...config.mcp }
  },
})
