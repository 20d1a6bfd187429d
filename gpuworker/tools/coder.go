package tools

import (
	"strings"

	"github.com/millrace/millrace/gpuworker/guide"
)

// coderFamily is that of Qwen3-Coder and of Qwen3.5 and later. Texts are raw, other arguments are JSON:
//
//	<tool_call>
//	<function=NAME>
//	<parameter=KEY>
//	value
//	</parameter>
//	</function>
//	</tool_call>
var coderFamily = &family{
	name: "qwen3_coder", parallel: true, trigger: "<tool_call>",
	machine: func(f Format, l Lexicon, calls bool) *machine {
		if !calls {
			return plainMachine(f, l, false)
		}
		const ( // the states after those that formats share
			head = ownStates + iota
			named
			inside
			keyed
			valued
			tail
			after
		)
		return taggedMachine(f, l, l.tag("<tool_call>"),
			state{mode: skip, exits: []exit{{mark: "<function=", to: named}}},
			state{mode: name, exits: []exit{{mark: ">", to: inside, do: startCall}}},
			state{mode: skip, exits: []exit{{mark: "<parameter=", to: keyed}, {mark: "</function>", to: tail, do: shutObject}}},
			state{mode: key, exits: []exit{{mark: ">\n", to: valued, do: startValue}}},
			state{mode: value, exits: []exit{{mark: endOfValue, to: inside, do: endValue}}},
			state{mode: skip, exits: []exit{{mark: l.tag("</tool_call>"), to: after}}},
			state{mode: content, skipLead: true, trim: true, exits: []exit{{mark: l.tag("<tool_call>"), to: head}}},
		)
	},
	calls: func(l Lexicon, tools []indexed, parallel bool) (guide.Term, error) {
		all := make([]guide.Term, len(tools))
		for i, t := range tools {
			arguments, err := coderArguments(t)
			if err != nil {
				return guide.Term{}, err
			}
			all[i] = seq(lit("<function="+t.Name+">\n"), arguments, lit("</function>"))
		}
		one := seq(lit(l.tag("<tool_call>")+"\n"), union(all...), lit("\n"+l.tag("</tool_call>")))
		return several(one, seq(lit("\n"), one), parallel), nil
	},
	types: func(tools []Tool) typesOf {
		all := typesOf{}
		for _, t := range tools {
			root, err := parseShape(t.Parameters)
			if err != nil {
				continue
			}
			for _, p := range root.members() {
				all[[2]string{t.Name, p.name}] = root.kindOf(p.schema)
			}
		}
		return all
	},
}

// endOfValue ends an argument.
const endOfValue = "\n</parameter>"

// coderArguments is the arguments of a tool: those declared in their order, or if none is, any.
func coderArguments(t indexed) (guide.Term, error) {
	text, err := t.schema()
	if err != nil {
		return guide.Term{}, err
	}
	root, err := parseShape(text)
	if err != nil {
		return guide.Term{}, &Error{t.path, err.Error()}
	}
	free := guide.Term{Op: guide.Free, Without: []string{endOfValue}}
	members := root.members()
	if err := t.ignoreAll(t.path, "cannot be honoured by qwen3_coder", append(root.others(objectWords...), root.loose(members)...)); err != nil {
		return guide.Term{}, err
	}
	if len(members) == 0 {
		if root.field("additionalProperties") == "false" {
			return lit(""), nil
		}
		return upTo(maxMembers, seq(lit("<parameter="), regex(`[^<>\n]{1,64}`), lit(">\n"), free, lit(endOfValue+"\n"))), nil
	}
	parts := make([]guide.Term, len(members))
	for i, m := range members {
		path := guide.Pointer(t.path+"/properties", m.name)
		if strings.ContainsAny(m.name, "<>\n") {
			return guide.Term{}, &Error{path, "has a name with <, > or a line end, which qwen3_coder cannot write"}
		}
		text := free
		switch root.kindOf(m.schema) {
		case textValue:
			if options := root.textOptions(m.schema, endOfValue); options != nil {
				text = union(options...)
			} else if err := t.ignoreAll(path, "cannot be honoured in texts of qwen3_coder", root.of(m.schema).others("type")); err != nil {
				return guide.Term{}, err
			}
		case jsonValue:
			source := &guide.Source{Kind: guide.JSONSchema, Text: root.standalone(m.schema), Lenient: !t.Strict}
			text = guide.Term{Op: guide.Nested, Source: source, Path: path}
		case mixedValue:
			if t.Strict {
				return guide.Term{}, &Error{path, "may be a text or something else, which qwen3_coder cannot tell apart, and strict is set"}
			}
		}
		parts[i] = seq(lit("<parameter="+m.name+">\n"), text, lit(endOfValue+"\n"))
		if !m.required {
			parts[i] = optional(parts[i])
		}
	}
	return seq(parts...), nil
}

// maxMembers bounds the members of an object whose schema names none.
const maxMembers = 64
