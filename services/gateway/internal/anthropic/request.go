package anthropic

import (
	"strconv"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// conversation is the body of POST /v1/messages/count_tokens, and a part of that of POST
// /v1/messages. A nil field is unset.
type conversation struct {
	Model    string    `json:"model"`
	System   content   `json:"system"`
	Messages []message `json:"messages"`

	// Skipped.
	CacheControl      strictjson.Raw `json:"cache_control"`
	ContextManagement strictjson.Raw `json:"context_management"`
	Speed             *string        `json:"speed"`

	Tools      []tool  `json:"tools"`
	ToolChoice *choice `json:"tool_choice"`
	Thinking   *choice `json:"thinking"`

	// Refused, unless they ask for nothing.
	OutputConfig *outputConfig    `json:"output_config"`
	OutputFormat strictjson.Raw   `json:"output_format"`
	MCPServers   []strictjson.Raw `json:"mcp_servers"`
}

// messagesRequest is the body of POST /v1/messages.
type messagesRequest struct {
	conversation
	MaxTokens     *int32    `json:"max_tokens"`
	Stream        bool      `json:"stream"`
	StopSequences []string  `json:"stop_sequences"`
	Temperature   *float32  `json:"temperature"`
	TopP          *float32  `json:"top_p"`
	TopK          *int32    `json:"top_k"`
	Metadata      *metadata `json:"metadata"`
	ServiceTier   *string   `json:"service_tier"`

	// Seed is an extension: it repeats an answer, see the field millrace of answers.
	Seed *translate.Seed `json:"seed"`

	// Skipped.
	InferenceGeo *string        `json:"inference_geo"`
	Diagnostics  strictjson.Raw `json:"diagnostics"`

	// Refused.
	Container strictjson.Raw `json:"container"`
	Thread    strictjson.Raw `json:"thread"` // see threadUnsupported
}

type metadata struct {
	UserID *string `json:"user_id"`
}

type outputConfig struct {
	Effort *string           `json:"effort"`
	Format *translate.Format `json:"format"`
}

// choice is a tool_choice or a thinking.
type choice struct {
	Type            string         `json:"type"`
	Name            *string        `json:"name"`
	DisableParallel *bool          `json:"disable_parallel_tool_use"`
	BudgetTokens    *int32         `json:"budget_tokens"`
	Display         strictjson.Raw `json:"display"`
}

type message struct {
	Role    string  `json:"role"`
	Content content `json:"content"`
}

// content is a text, or a list of blocks.
type content struct {
	text   string
	blocks []block
	set    bool
}

// DecodeJSON implements strictjson.Value.
func (c *content) DecodeJSON(d *strictjson.Decoder) error {
	c.set = true
	switch d.Kind() {
	case strictjson.String:
		return d.Decode(&c.text)
	case strictjson.Array:
		return d.Decode(&c.blocks)
	default:
		return d.Errorf("is %s: must be a string or a list of blocks", d.Kind())
	}
}

// chat returns the contract's chat and the JSON path of each of its messages. It refuses features
// that the servers lack, and records fields without effect.
func (c *conversation) chat(x *httpapi.Exchange) (*pb.Chat, []string, error) {
	if c.Model == "" {
		return nil, nil, httpapi.Invalid("model", "is missing: GET /v1/models lists the models")
	}
	x.Annotate("model", c.Model)
	config := c.OutputConfig
	if config == nil {
		config = &outputConfig{}
	}
	if err := translate.Refuse(
		translate.Field{Param: "output_format", Set: c.OutputFormat != nil, Why: "output_config.format is its newer name: send that"},
		translate.Field{Param: "mcp_servers", Set: len(c.MCPServers) > 0, Why: "the servers call no others: leave it out"},
	); err != nil {
		return nil, nil, err
	}
	if err := translate.Skip(x,
		translate.Field{Param: "cache_control", Set: c.CacheControl != nil},
		translate.Field{Param: "context_management", Set: c.ContextManagement != nil},
		translate.Field{Param: "output_config.effort", Set: config.Effort != nil},
		translate.Field{Param: "speed", Set: c.Speed != nil && *c.Speed != "standard"},
	); err != nil {
		return nil, nil, err
	}
	chat, paths, err := c.translate(x)
	if err != nil {
		return nil, nil, err
	}
	if err := c.tools(x, chat); err != nil {
		return nil, nil, err
	}
	return chat, paths, c.think(x, chat)
}

// translate returns the contract's chat and the path of each of its messages.
func (c *conversation) translate(x *httpapi.Exchange) (*pb.Chat, []string, error) {
	all := &turns{}
	system, err := c.System.join(x, "system")
	if err != nil {
		return nil, nil, err
	}
	if system != "" {
		addText(all.last("system", "system"), system)
	}
	if len(c.Messages) == 0 {
		return nil, nil, httpapi.Invalid("messages", "is empty: send at least one message")
	}
	for i, m := range c.Messages {
		path := "messages[" + strconv.Itoa(i) + "]"
		switch m.Role {
		case "user", "assistant", "system":
		case "":
			return nil, nil, httpapi.Invalid(path+".role", "is missing")
		default:
			return nil, nil, httpapi.Invalid(path+".role", "is %.32q: must be user, assistant or system", m.Role)
		}
		if !m.Content.set {
			return nil, nil, httpapi.Invalid(path+".content", "is missing")
		}
		if err := all.add(x, m, path); err != nil {
			return nil, nil, err
		}
	}
	last := len(c.Messages) - 1
	if c.Messages[last].Role == "assistant" {
		return nil, nil, httpapi.Unsupported("messages["+strconv.Itoa(last)+"]", "is the last message and of the assistant, which the servers cannot continue: end with a message of the user")
	}
	return &pb.Chat{Messages: all.messages}, all.paths, nil
}

// fields are the JSON paths of fields of the contract whose last name differs.
var fields = map[string]string{"stopping.stop": "stop_sequences", "fairness_id": "metadata.user_id", "chat": "messages", translate.SchemaField: formatPath + ".schema"}

const formatPath = "output_config.format"

// request returns the contract's request and its paths.
func (r *messagesRequest) request(x *httpapi.Exchange) (*pb.GenerateRequest, translate.Paths, error) {
	paths := translate.Paths{Fields: []map[string]string{fields}}
	chat, messages, err := r.chat(x)
	if err != nil {
		return nil, paths, err
	}
	paths.Messages = messages
	if r.MaxTokens == nil {
		return nil, paths, httpapi.Invalid("max_tokens", "is missing: send the most tokens that the answer may have")
	}
	if *r.MaxTokens < 1 {
		return nil, paths, httpapi.Invalid("max_tokens", "is %d: must be at least 1", *r.MaxTokens)
	}
	if tier := r.ServiceTier; tier != nil && *tier != "auto" && *tier != "standard_only" {
		return nil, paths, httpapi.Invalid("service_tier", "is %.32q: must be auto or standard_only", *tier)
	}
	if err := translate.Refuse(
		translate.Field{Param: "container", Set: r.Container != nil, Why: "the servers run no containers: leave it out"},
		translate.Field{Param: "thread", Set: r.Thread != nil, Why: "nothing is stored: send the whole conversation"},
	); err != nil {
		return nil, paths, err
	}
	if err := translate.Skip(x,
		translate.Field{Param: "inference_geo", Set: r.InferenceGeo != nil}, translate.Field{Param: "diagnostics", Set: r.Diagnostics != nil},
	); err != nil {
		return nil, paths, err
	}
	r.Seed = r.Seed.OrDrawn()
	in := &pb.GenerateRequest{
		RequestId: &x.ID, Model: r.Model, Input: &pb.GenerateRequest_Chat{Chat: chat},
		Sampling: &pb.Sampling{Temperature: r.Temperature, TopP: r.TopP, TopK: r.TopK, Seed: &r.Seed.Bits},
		Stopping: &pb.Stopping{MaxTokens: r.MaxTokens, Stop: r.StopSequences},
	}
	translate.WantParts(in)
	if r.Metadata != nil {
		translate.SetTenant(in, r.Metadata.UserID)
	}
	if c := r.OutputConfig; c != nil && c.Format != nil {
		in.Guided, err = c.Format.Guided(formatPath+".type", formatPath+".schema")
	}
	return in, paths, err
}
