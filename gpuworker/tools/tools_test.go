package tools

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/gpuworker/guide"
)

const weather = `{"type":"object","properties":{
	"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9},"unit":{"enum":["C","F"]},
	"exact":{"type":"boolean"},"tags":{"type":"array","items":{"type":"string"}},"at":{"$ref":"#/$defs/place"}},
	"required":["city"],"additionalProperties":false,
	"$defs":{"place":{"type":"object","properties":{"x":{"type":"number"},"y":{"type":"integer"}},"required":["y"],"additionalProperties":false}}}`

var testTools = []Tool{
	{Name: "get_weather", Parameters: weather},
	{Name: "now", Parameters: `{"type":"object","properties":{},"additionalProperties":false}`},
}

// everyMark has all marks as control tokens, and noMark none.
func everyMark(tag string) bool { return slices.Contains(Marks(), tag) }
func noMark(string) bool        { return false }

// spell writes the control tokens of a text, which stand between « and », as a vocabulary does.
func spell(l Lexicon, text string) string {
	for _, tag := range marks {
		text = strings.ReplaceAll(text, "«"+tag+"»", l.tag(tag))
	}
	return text
}

type example struct {
	format string
	// answers, by name; calls have the canonical form of their arguments.
	text string
	want []Part
}

func part(k Kind, text string) Part { return Part{Kind: k, Text: text} }

func calling(index int, name, arguments string) Part {
	return Part{Kind: Call, Index: index, Name: name, Text: arguments}
}

// templates show each format.
var templates = map[string]string{
	"hermes":       `<think> </think> <tool_call>{"name": .., "arguments": ..}`,
	"qwen3_coder":  `</think> <tool_call> <function=x> <parameter=y>`,
	"harmony":      `<|start|> <|channel|> <|message|>`,
	"gemma4":       `<|channel> <channel|> <|tool_call>call:`,
	"llama3_json":  `<|start_header_id|> {"name": , "parameters": } tools`,
	"mistral":      `[THINK] [TOOL_CALLS] [ARGS]`,
	"mistral_json": `[TOOL_CALLS]`,
}

var examples = map[string]example{
	"a text": {format: "hermes", text: "Hello <there>.\n", want: []Part{part(Content, "Hello <there>.\n")}},
	"reasoning, text and two calls": {
		format: "hermes",
		text: "«<think>»\nHm.\n«</think>»\n\nI look.\n«<tool_call>»\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"}\\\"Oslo\"}}\n«</tool_call>»" +
			"\n«<tool_call>»\n{\"name\": \"now\", \"arguments\": {}}\n«</tool_call>»",
		want: []Part{part(Reasoning, "Hm."), part(Content, "I look."), calling(0, "get_weather", `{"city": "}\"Oslo"}`), calling(1, "now", "{}")},
	},
	"raw arguments": {
		format: "qwen3_coder",
		text: "«<tool_call>»\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n</parameter\nnot yet\n</parameter>\n<parameter=days>\n3\n</parameter>\n" +
			"<parameter=unit>\nC\n</parameter>\n<parameter=exact>\ntrue\n</parameter>\n<parameter=at>\n{\"y\": 4}\n</parameter>\n</function>\n«</tool_call>»" +
			"\n«<tool_call>»\n<function=now>\n</function>\n«</tool_call>»",
		want: []Part{
			calling(0, "get_weather", `{"city": "New \"York\"\n</parameter\nnot yet", "days": 3, "unit": "C", "exact": true, "at": {"y": 4}}`),
			calling(1, "now", "{}"),
		},
	},
	"channels": {
		format: "harmony",
		text: "«<|channel|>»analysis«<|message|>»Hm.«<|end|>»«<|start|>»assistant«<|channel|>»commentary«<|message|>»I look.«<|end|>»" +
			"«<|start|>»assistant«<|channel|>»commentary to=functions.get_weather «<|constrain|>»json«<|message|>»{\"city\":\"Oslo\"}",
		want: []Part{part(Reasoning, "Hm."), part(Content, "I look."), calling(0, "get_weather", `{"city":"Oslo"}`)},
	},
	"a recipient before the channel": {
		format: "harmony", text: " to=functions.now«<|channel|>»commentary json«<|message|>»{}", want: []Part{calling(0, "now", "{}")},
	},
	"a final message": {
		format: "harmony", text: "«<|channel|>»final«<|message|>»Done.", want: []Part{part(Content, "Done.")},
	},
	"bare keys": {
		format: "gemma4",
		text: "«<|channel>»thought\nHm.\n«<channel|>»I look.«<|tool_call>»call:get_weather{at:{x:1.5,y:2},city:«<|\"|>»a\"b:{,}\n«<|\"|>»,tags:[«<|\"|>»u«<|\"|>»,«<|\"|>»v«<|\"|>»]}«<tool_call|>»" +
			"«<|tool_call>»call:now{}«<tool_call|>»",
		want: []Part{
			part(Reasoning, "Hm."), part(Content, "I look."),
			calling(0, "get_weather", `{"at":{"x":1.5,"y":2},"city":"a\"b:{,}\n","tags":["u","v"]}`), calling(1, "now", "{}"),
		},
	},
	"a bare object": {
		format: "llama3_json", text: `{"name": "get_weather", "parameters": {"city": "Oslo"}}`, want: []Part{calling(0, "get_weather", `{"city": "Oslo"}`)},
	},
	"a tag before it": {
		format: "llama3_json", text: `«<|python_tag|>»{"name": "now", "parameters": {}}`, want: []Part{calling(0, "now", "{}")},
	},
	"a text that is no object": {format: "llama3_json", text: `It is {"name": "x"}.`, want: []Part{part(Content, `It is {"name": "x"}.`)}},
	"names and arguments": {
		format: "mistral", text: "«[THINK]»Hm.«[/THINK]»I look.«[TOOL_CALLS]»get_weather«[ARGS]»{\"city\": \"Oslo\"}«[TOOL_CALLS]»now«[ARGS]»{}",
		want: []Part{part(Reasoning, "Hm."), part(Content, "I look."), calling(0, "get_weather", `{"city": "Oslo"}`), calling(1, "now", "{}")},
	},
	"a list of calls": {
		format: "mistral_json", text: "«[TOOL_CALLS]»[{\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"[]\"}}]",
		want: []Part{calling(0, "now", "{}"), calling(1, "get_weather", `{"city": "[]"}`)},
	},
}

// gather joins parts of one kind.
func gather(all, more []Part) []Part {
	for _, p := range more {
		n := len(all) - 1
		if n >= 0 && all[n].Kind == p.Kind && all[n].Index == p.Index && p.Name == "" {
			all[n].Text += p.Text
			continue
		}
		all = append(all, p)
	}
	return all
}

// parse gives a text to a parser in pieces of at most so many characters and control tokens.
func parse(p *Parser, text string, most int) (all []Part) {
	for len(text) > 0 {
		n := 0
		for range most {
			_, size := utf8.DecodeRuneInString(text[n:])
			for _, tag := range marks { // a control token comes as a whole
				if strings.HasPrefix(text[n:], guide.Control+tag) {
					size = max(size, len(guide.Control+tag))
				}
			}
			n += size
		}
		all = gather(all, slices.Clone(p.Push(text[:n])))
		text = text[n:]
	}
	return gather(all, p.Flush())
}

func TestDetectKnowsEachFormat(t *testing.T) {
	for name, template := range templates {
		f := Detect(template)
		require.Equal(t, name, f.Name)
		require.Equal(t, name != "llama3_json" && name != "mistral_json", f.Reasons(), name)
		other, ok := Format{}.Named(name)
		require.True(t, ok)
		require.Equal(t, name, other.Name)
	}
	require.Equal(t, Format{}, Detect("{{ messages[0].content }}"))
	require.Equal(t, "<think>", Detect("a </think> b").Open)
	_, ok := Format{}.Named("xml")
	require.False(t, ok)
	require.Len(t, Names(), len(families))
}

func TestPromptShowsWhereReasoningIs(t *testing.T) {
	f := Detect(templates["hermes"])
	require.Equal(t, Neutral, f.OpeningOf("<|im_start|>assistant\n"))
	require.Equal(t, Opened, f.OpeningOf("<|im_start|>assistant\n<think>\n"))
	require.Equal(t, Closed, f.OpeningOf("<|im_start|>assistant\n<think>\n\n</think>\n\n"))
	g := Detect(templates["gemma4"])
	require.Equal(t, Closed, g.OpeningOf("<|turn>model\n<|channel>thought\n<channel|>"))
	require.Equal(t, Opened, g.OpeningOf("<|turn>model\n<|channel>thought\n"))
}

// Each answer is a text of its constraint, and its parts do not depend on how its bytes arrive.
func TestFormatsDivideAnswers(t *testing.T) {
	for name, e := range examples {
		t.Run(e.format+", "+name, func(t *testing.T) {
			for _, l := range []Lexicon{everyMark, noMark} {
				f, answer, text := Detect(templates[e.format]), Answer{Tools: testTools, Choice: Choice{Parallel: true}}, spell(l, e.text)
				source, err := f.Constraint(l, answer)
				require.NoError(t, err)
				g, err := guide.Compile(*source, vocabulary(l))
				require.NoError(t, err)
				require.Empty(t, g.Dropped())
				require.True(t, accepts(g, text), "%q", text)
				for _, most := range []int{1, 2, 3, 7, 1000} {
					require.Equal(t, e.want, parse(f.Parser(l, answer), text, most))
				}
				answer.Choice.Mode = None
				source, err = f.Constraint(l, answer)
				require.NoError(t, err)
				g, err = guide.Compile(*source, vocabulary(l))
				require.NoError(t, err)
				calls := slices.ContainsFunc(e.want, func(p Part) bool { return p.Kind == Call })
				require.Equal(t, !calls, accepts(g, text), "none forbids calls and nothing else")
			}
		})
	}
}

// vocabulary has a token for each byte and each control token, and an end token.
func vocabulary(l Lexicon) *guide.Vocabulary {
	return guide.NewVocabulary(end+1, func(id int32) []byte {
		switch {
		case id < 0xff:
			return []byte{byte(id)}
		case id >= 256 && int(id) < 256+len(marks) && l(marks[id-256]):
			return []byte(guide.Control + marks[id-256])
		}
		return nil
	}, 1<<20)
}

const end = 400

func accepts(g *guide.Grammar, text string) bool {
	s, err := g.Start(nil).AdvanceText(text)
	return err == nil && s.Complete()
}

// Whatever the masks allow has calls whose arguments the schema accepts.
func TestEveryAllowedAnswerHasValidCalls(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(weather))
	require.NoError(t, err)
	require.NoError(t, compiler.AddResource("weather.json", doc))
	schema := compiler.MustCompile("weather.json")
	rng := rand.New(rand.NewPCG(1, 2))
	for name, template := range templates {
		t.Run(name, func(t *testing.T) {
			for _, l := range []Lexicon{everyMark, noMark} {
				calls := 0
				for _, c := range []Choice{{Mode: Required}, {Mode: Required, Name: "get_weather"}, {Mode: Required, Parallel: true}} {
					f, answer := Detect(template), Answer{Tools: testTools, Choice: c}
					source, err := f.Constraint(l, answer)
					require.NoError(t, err)
					v := vocabulary(l)
					g, err := guide.Compile(*source, v)
					require.NoError(t, err)
					for range 12 {
						parts := walk(t, rng, g, v, f.Parser(l, answer))
						found := 0
						for _, p := range parts {
							if p.Kind != Call {
								continue
							}
							found++
							if p.Name == "get_weather" {
								value, err := jsonschema.UnmarshalJSON(strings.NewReader(p.Text))
								require.NoError(t, err, p.Text)
								require.NoError(t, schema.Validate(value), p.Text)
							} else {
								require.Equal(t, "now", p.Name)
								require.JSONEq(t, "{}", p.Text)
							}
							require.False(t, c.Name != "" && p.Name != c.Name)
						}
						require.Positive(t, found)
						require.True(t, c.Parallel || found == 1)
						calls += found
					}
				}
				require.Greater(t, calls, 30)
			}
		})
	}
}

// walk generates an answer by the masks, and returns its parts. It ends as soon as it may, after a while.
func walk(t *testing.T, rng *rand.Rand, g *guide.Grammar, v *guide.Vocabulary, p *Parser) (all []Part) {
	t.Helper()
	state, mask := g.Start([]int32{end}), make([]uint32, v.Words())
	var pending []byte
	for n := 0; ; n++ {
		require.NoError(t, state.Mask(mask))
		var ids []int32
		for id := range int32(end + 1) {
			if mask[id>>5]&(1<<(id&31)) != 0 {
				ids = append(ids, id)
			}
		}
		id := ids[rng.IntN(len(ids))]
		if n > 40 || rng.IntN(3) == 0 { // bring it to its end
			if next, err := state.AdvanceText(p.closer()); err == nil && p.closer() != "" && len(pending) == 0 {
				state = next
				all = gather(all, slices.Clone(p.Push(p.closer())))
				continue
			}
			for _, c := range []int32{end, '"', '}', ']', '>', '\n', '<'} {
				if slices.Contains(ids, c) {
					id = c
					break
				}
			}
		}
		require.Less(t, n, 20000)
		if id == end {
			return gather(all, p.Flush())
		}
		var err error
		state, err = state.Advance(id)
		require.NoError(t, err)
		if id >= 256 {
			all = gather(all, slices.Clone(p.Control(marks[id-256])))
			continue
		}
		if pending = append(pending, byte(id)); utf8.Valid(pending) {
			all = gather(all, slices.Clone(p.Push(string(pending))))
			pending = pending[:0]
		}
	}
}

// closer is what ends the text that the parser is in; "" if it is in none.
func (p *Parser) closer() string {
	switch s := p.machine.states[p.at]; {
	case s.mode == value:
		return endOfValue + "\n"
	case s.mode == pairs && p.pairs.text:
		return p.machine.quote
	case s.mode == reasoning && p.machine.start == openState && len(s.exits) > 1:
		return s.exits[0].mark + s.exits[1].mark + "assistant"
	case s.mode == reasoning:
		return s.exits[0].mark
	}
	return ""
}

func TestUnmarkedAnswersHaveOneKind(t *testing.T) {
	for _, f := range []Format{{}, Detect("</think>")} {
		source, err := f.Constraint(everyMark, Answer{})
		require.NoError(t, err)
		require.Nil(t, source)
		require.Equal(t, []Part{part(Content, " <tool_call>\n é ")}, parse(f.Parser(everyMark, Answer{}), " <tool_call>\n é ", 1))
	}
	f := Detect("</think>")
	require.Equal(t, []Part{part(Reasoning, "Hm.")}, parse(f.Parser(noMark, Answer{Opening: Opened}), "Hm.", 1), "it was cut off")
	require.Equal(t, []Part{part(Reasoning, "Hm."), part(Content, "Yes.")}, parse(f.Parser(noMark, Answer{Opening: Opened}), "\nHm.\n</think>\n\nYes.", 2))
}

// A constraint may begin after the reasoning.
func TestConstraintFollowsReasoning(t *testing.T) {
	yes := &guide.Source{Kind: guide.Choice, Options: []string{"yes", "no"}}
	for name, tc := range map[string]struct {
		template string
		opening  Opening
		text     string
		accepted bool
	}{
		"opened":          {"</think>", Opened, "Hm.</think>\n\nyes", true},
		"opened, skipped": {"</think>", Opened, "yes", false},
		"neutral":         {"</think>", Neutral, "<think>Hm.</think>no", true},
		"neutral, none":   {"</think>", Neutral, "no", true},
		"closed":          {"</think>", Closed, "no", true},
		"closed, again":   {"</think>", Closed, "<think>Hm.</think>no", false},
		"harmony":         {templates["harmony"], Neutral, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>yes", true},
		"harmony, maybe":  {templates["harmony"], Neutral, "<|channel|>final<|message|>maybe", false},
		"no marks":        {"", Neutral, "yes", true},
	} {
		t.Run(name, func(t *testing.T) {
			source, err := Detect(tc.template).Constraint(noMark, Answer{Opening: tc.opening, Source: yes})
			require.NoError(t, err)
			g, err := guide.Compile(*source, vocabulary(noMark))
			require.NoError(t, err)
			require.Equal(t, tc.accepted, accepts(g, tc.text))
		})
	}
}

// With a constraint of the text an answer is calls or such a text, which may spell what begins a call.
func TestConstrainedTextOrCalls(t *testing.T) {
	text := &guide.Source{Kind: guide.Choice, Options: []string{"is <tool_call>"}}
	answer := Answer{Opening: Closed, Tools: testTools, Source: text}
	f := Detect(templates["hermes"])
	source, err := f.Constraint(noMark, answer)
	require.NoError(t, err)
	g, err := guide.Compile(*source, vocabulary(noMark))
	require.NoError(t, err)
	call := "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"
	require.True(t, accepts(g, "is <tool_call>"))
	require.True(t, accepts(g, call))
	require.False(t, accepts(g, "is "+call))
	require.Equal(t, []Part{part(Content, "is <tool_call>")}, parse(f.Parser(noMark, answer), "is <tool_call>", 1))
	require.Equal(t, []Part{calling(0, "now", "{}")}, parse(f.Parser(noMark, answer), call, 1))
	llama := Detect(templates["llama3_json"])
	_, err = llama.Constraint(noMark, answer)
	require.ErrorIs(t, err, ErrFormat)
	answer.Choice.Mode = Required
	_, err = llama.Constraint(noMark, answer)
	require.NoError(t, err)
}

func TestFormatsRefuseWhatTheyCannotWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		format, schema string
		strict         bool
		path           string
	}{
		"no object":         {"hermes", `[]`, false, "#/tools/0/parameters"},
		"another type":      {"hermes", `{"type":"array"}`, false, "#/tools/0/parameters/type"},
		"a name":            {"qwen3_coder", `{"properties":{"a>":{"type":"string"}}}`, false, "#/tools/0/parameters/properties/a>"},
		"a strict pattern":  {"qwen3_coder", `{"properties":{"a":{"type":"string","pattern":"a"}}}`, true, "#/tools/0/parameters/properties/a/pattern"},
		"a strict mixture":  {"qwen3_coder", `{"properties":{"a":{}}}`, true, "#/tools/0/parameters/properties/a"},
		"a key":             {"gemma4", `{"properties":{"a:b":{}}}`, false, "#/tools/0/parameters/properties/a:b"},
		"a list in an enum": {"gemma4", `{"properties":{"a":{"enum":[[1]]}}}`, false, "#/tools/0/parameters/properties/a"},
		"deep":              {"gemma4", `{"properties":{"a":` + strings.Repeat(`{"type":"array","items":`, 40) + `{}` + strings.Repeat("}", 40) + `}}`, false, ""},
		"endless recursion": {"gemma4", `{"properties":{"a":{"$ref":"#/$defs/a"}},"$defs":{"a":{"type":"array","items":{"$ref":"#/$defs/a"}}}}`, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, _ := Format{}.Named(tc.format)
			_, err := f.Constraint(noMark, Answer{Tools: []Tool{{Name: "f", Parameters: tc.schema, Strict: tc.strict}}})
			require.ErrorIs(t, err, ErrFormat)
			var problem *Error
			require.ErrorAs(t, err, &problem)
			require.True(t, strings.HasPrefix(problem.Path, tc.path))
			require.Contains(t, err.Error(), problem.Problem)
		})
	}
}

func TestCallIDsFollowFromTheStream(t *testing.T) {
	f, short := Detect(templates["hermes"]), Detect(templates["mistral"])
	seen := map[string]bool{}
	for _, id := range []string{
		f.CallID("d", 1, 0, 0), f.CallID("d", 1, 0, 1), f.CallID("d", 1, 1, 0), f.CallID("d", 2, 0, 0), f.CallID("e", 1, 0, 0), short.CallID("d", 1, 0, 0),
	} {
		require.False(t, seen[id])
		seen[id] = true
	}
	require.True(t, seen[f.CallID("d", 1, 0, 0)], "the same call has the same id")
	require.Regexp(t, "^call_[a-z0-9]{24}$", f.CallID("d", 1, 0, 0))
	require.Regexp(t, "^[a-z0-9]{9}$", short.CallID("d", 1, 0, 0))
	require.Equal(t, "call_x", f.PromptID("call_x"))
	require.Equal(t, "abcdefgh9", short.PromptID("abcdefgh9"))
	require.Regexp(t, "^[a-z0-9]{9}$", short.PromptID("call_x"))
}

func FuzzParser(f *testing.F) {
	for _, e := range examples {
		f.Add(e.format, e.text, uint8(3))
	}
	f.Fuzz(func(t *testing.T, format, text string, most uint8) {
		if !utf8.ValidString(text) {
			return
		}
		shown := Detect(templates[format])
		answer := Answer{Tools: testTools, Choice: Choice{Parallel: true}}
		text = spell(everyMark, text)
		whole := parse(shown.Parser(everyMark, answer), text, len(text)+1)
		require.Equal(t, whole, parse(shown.Parser(everyMark, answer), text, int(most)+1))
		for _, p := range whole {
			require.True(t, utf8.ValidString(p.Text))
			_, err := json.Marshal(p)
			require.NoError(t, err)
		}
	})
}

// An agent's tools compile in every format, and the most that a request may have is accepted or refused by counted work.
func TestManyToolsCompileOrAreRefused(t *testing.T) {
	const property = `"p%":{"type":"string","description":"One of them."},"n%":{"type":"integer","minimum":0},"e%":{"enum":["a","b"]},"l%":{"type":"array","items":{"type":"string"}}`
	var properties []string
	for _, n := range []string{"1", "2"} {
		properties = append(properties, strings.ReplaceAll(property, "%", n))
	}
	schema := `{"type":"object","properties":{` + strings.Join(properties, ",") + `},"required":["p1"]}`
	for _, count := range []int{40, 128} {
		tools := make([]Tool, count)
		for i := range tools {
			tools[i] = Tool{Name: "tool_" + string(rune('a'+i%26)) + strings.Repeat("x", i/26), Parameters: schema}
		}
		for name, template := range templates {
			source, err := Detect(template).Constraint(everyMark, Answer{Tools: tools, Choice: Choice{Parallel: true}})
			require.NoError(t, err)
			began := time.Now()
			_, err = guide.Compile(*source, vocabulary(everyMark))
			t.Logf("%s: %d tools: %v, %v", name, count, time.Since(began).Round(time.Millisecond), err)
			if count == 40 || err != nil {
				require.True(t, err == nil || count > 40 && errors.Is(err, guide.ErrLimit), "%s: %v", name, err)
			}
		}
	}
}
