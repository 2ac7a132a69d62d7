import postroom

with postroom.open("sqlite:hello-room") as room:
    ada, bob = room.agent("ada"), room.agent("bob")
    id = ada.send("bob", {"text": "hello"})

    with bob.receive(timeout_s=5) as message:  # acked at the end; delivered again if this raises
        print(message.from_agent, "says", message.payload["text"])

    for event, time, agent, detail in room.receipt(id).events:
        print(event, "by", agent)
