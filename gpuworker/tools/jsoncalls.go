package tools

import "github.com/millrace/millrace/gpuworker/guide"

// A call of these formats is a JSON object with the name and the arguments of the tool.

// hermesFamily is that of Hermes, Qwen2.5 and Qwen3:
//
//	<tool_call>
//	{"name": "NAME", "arguments": {...}}
//	</tool_call>
var hermesFamily = &family{
	name: "hermes", parallel: true, trigger: "<tool_call>",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		return taggedMachine(f, l, l.tag("<tool_call>"),
			state{mode: skip, exits: []exit{{mark: `"name": "`, to: ownStates + 1}}},
			state{mode: name, exits: []exit{{mark: `"`, to: ownStates + 2, do: startCall}}},
			state{mode: skip, exits: []exit{{mark: `"arguments": `, to: ownStates + 3}}},
			state{mode: object, to: ownStates + 4},
			state{mode: skip, exits: []exit{{mark: l.tag("</tool_call>"), to: ownStates + 5}}},
			state{mode: content, skipLead: true, trim: true, exits: []exit{{mark: l.tag("<tool_call>"), to: ownStates}}},
		)
	},
	calls: func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error) {
		one, err := eachTool(tools, func(t indexed, arguments guide.Term) guide.Term {
			return seq(lit(`{"name": "`+t.Name+`", "arguments": `), arguments, lit("}"))
		})
		one = seq(lit(l.tag("<tool_call>")+"\n"), one, lit("\n"+l.tag("</tool_call>")))
		return several(one, seq(lit("\n"), one), parallel), err
	},
}

// llamaFamily is that of Llama 3: the whole answer is {"name": "NAME", "parameters": {...}}, perhaps behind
// <|python_tag|>. An answer has one call.
var llamaFamily = &family{
	name: "llama3_json",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		m := taggedMachine(f, l, "",
			state{mode: name, exits: []exit{{mark: `"`, to: ownStates + 1, do: startCall}}},
			state{mode: skip, exits: []exit{{mark: `"parameters": `, to: ownStates + 2}}},
			state{mode: object, to: ownStates + 3},
			state{mode: skip},
		)
		for _, at := range []int{beginState, contentState} {
			m.states[at].lead = append(m.states[at].lead,
				exit{mark: llamaHead, to: ownStates}, exit{mark: l.tag("<|python_tag|>") + llamaHead, to: ownStates})
		}
		return m
	},
	whole: func(f Format, l Lexicon, a Answer, tools []indexed) (guide.Term, error) {
		call, err := eachTool(tools, func(t indexed, arguments guide.Term) guide.Term {
			return seq(lit(llamaHead+t.Name+`", "parameters": `), arguments, lit("}"))
		})
		if err != nil {
			return call, err
		}
		tag := optional(lit(l.tag("<|python_tag|>")))
		// A text that is no call does not begin with a brace, so that what begins like a call is one.
		text := f.text(l, a)
		text.NotFirst = append(text.NotFirst, "{")
		if !l("<|python_tag|>") {
			text.NotFirst = append(text.NotFirst, "<|python_tag|>{")
		}
		switch {
		case a.Source != nil && (a.Choice.Mode == None || len(tools) == 0):
			return Format{Open: f.Open, Close: f.Close}.tagged(l, a, nil)
		case a.Source != nil && a.Choice.Mode == Auto:
			return guide.Term{}, &Error{"#/tools", "and a constraint of the text together, which llama3_json cannot tell apart: choose none or required"}
		case a.Choice.Mode == None:
		case a.Choice.Mode == Required:
			text = seq(tag, call)
		default:
			text = union(seq(tag, call), text)
		}
		return seq(append(f.before(l, a), text)...), nil
	},
}

const llamaHead = `{"name": "`

// mistralJSONFamily is that of Mistral's models until 2024:
//
//	[TOOL_CALLS][{"name": "NAME", "arguments": {...}}, ...]
var mistralJSONFamily = &family{
	name: "mistral_json", parallel: true, trigger: "[TOOL_CALLS]",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		return taggedMachine(f, l, l.tag("[TOOL_CALLS]"),
			state{mode: skip, exits: []exit{{mark: `"name": "`, to: ownStates + 1}}},
			state{mode: name, exits: []exit{{mark: `"`, to: ownStates + 2, do: startCall}}},
			state{mode: skip, exits: []exit{{mark: `"arguments": `, to: ownStates + 3}}},
			state{mode: object, to: ownStates},
		)
	},
	calls: func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error) {
		one, err := eachTool(tools, func(t indexed, arguments guide.Term) guide.Term {
			return seq(lit(`{"name": "`+t.Name+`", "arguments": `), arguments, optional(regex(`, "id": "[A-Za-z0-9]{9}"`)), lit("}"))
		})
		return seq(lit(l.tag("[TOOL_CALLS]")), optional(lit(" ")), lit("["), several(one, seq(lit(", "), one), parallel), lit("]")), err
	},
}

// mistralFamily is that of Mistral's models since 2025:
//
//	[TOOL_CALLS]NAME[ARGS]{...}
var mistralFamily = &family{
	name: "mistral", parallel: true, trigger: "[TOOL_CALLS]",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		return taggedMachine(f, l, l.tag("[TOOL_CALLS]"),
			state{mode: name, exits: []exit{
				{mark: l.tag("[ARGS]"), to: ownStates + 2, do: startCall}, {mark: l.tag("[CALL_ID]"), to: ownStates + 1, do: startCall},
			}},
			state{mode: skip, exits: []exit{{mark: l.tag("[ARGS]"), to: ownStates + 2}}},
			state{mode: object, to: ownStates + 3},
			state{mode: content, skipLead: true, trim: true, exits: []exit{{mark: l.tag("[TOOL_CALLS]"), to: ownStates}}},
		)
	},
	calls: func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error) {
		one, err := eachTool(tools, func(t indexed, arguments guide.Term) guide.Term {
			head := []guide.Term{lit(l.tag("[TOOL_CALLS]") + t.Name)}
			if l("[CALL_ID]") {
				head = append(head, optional(seq(lit(l.tag("[CALL_ID]")), regex(`[A-Za-z0-9]{9}`))))
			}
			return seq(append(head, lit(l.tag("[ARGS]")), arguments)...)
		})
		return several(one, one, parallel), err
	},
}

// eachTool is a call of one of the tools.
func eachTool(tools []indexed, call func(t indexed, arguments guide.Term) guide.Term) (guide.Term, error) {
	all := make([]guide.Term, len(tools))
	for i, t := range tools {
		arguments, err := t.arguments()
		if err != nil {
			return guide.Term{}, err
		}
		all[i] = call(t, arguments)
	}
	return union(all...), nil
}

// maxCalls bounds the calls of one answer.
const maxCalls = 64

// several is one call, or as many as an answer may have.
func several(first, next guide.Term, parallel bool) guide.Term {
	if !parallel {
		return first
	}
	return seq(first, upTo(maxCalls-1, next))
}
