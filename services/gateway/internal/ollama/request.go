package ollama

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/gateway/internal/target"
	"github.com/millrace/millrace/services/gateway/internal/translate"
)

// Dialect is Ollama's API over the servers of a client.
type Dialect struct {
	client *target.Client
	now    func() time.Time
}

// New returns the dialect.
func New(client *target.Client) *Dialect { return &Dialect{client, time.Now} }

// Routes implements httpapi.Dialect.
func (d *Dialect) Routes() []httpapi.Route {
	return []httpapi.Route{
		{Pattern: "GET /{$}", Handle: d.greet},
		{Pattern: "POST /api/chat", Handle: d.chat},
		{Pattern: "POST /api/generate", Handle: d.generate},
		{Pattern: "POST /api/embed", Handle: d.embed},
		{Pattern: "POST /api/embeddings", Handle: d.embeddings},
		{Pattern: "POST /api/show", Handle: d.show},
		{Pattern: "GET /api/tags", Handle: d.listModels},
		{Pattern: "GET /api/ps", Handle: d.listLoaded},
		{Pattern: "GET /api/version", Handle: d.version},
	}
}

var _ httpapi.Dialect = (*Dialect)(nil)

// errorBody is an error in Ollama's shape, with the reason and the path.
type errorBody struct {
	Error string `json:"error"`
	Code  string `json:"code"`
	Param string `json:"param,omitempty"`
}

// ErrorBody implements httpapi.Dialect.
func (*Dialect) ErrorBody(f *httpapi.Failure) []byte {
	body, err := json.Marshal(errorBody{f.Message, f.Reason, f.Param})
	if err != nil { // texts always marshal
		return nil
	}
	return body
}

// ErrorEvent implements httpapi.Dialect. No object that is done follows it.
func (d *Dialect) ErrorEvent(f *httpapi.Failure) []byte { return append(d.ErrorBody(f), '\n') }

// common are the fields that chat and generate share. A nil field is unset.
type common struct {
	Model   string  `json:"model"`
	Stream  *bool   `json:"stream"`
	Options options `json:"options"`
	Think   *think  `json:"think"`

	// Skipped.
	KeepAlive strictjson.Raw `json:"keep_alive"`
	Truncate  strictjson.Raw `json:"truncate"`
	Shift     strictjson.Raw `json:"shift"`

	// Refused, unless they ask for nothing.
	Format      strictjson.Raw `json:"format"`
	Logprobs    *bool          `json:"logprobs"`
	TopLogprobs *int32         `json:"top_logprobs"`
}

// think is a boolean or an effort.
type think struct {
	on     bool
	effort string
}

// DecodeJSON implements strictjson.Value.
func (t *think) DecodeJSON(d *strictjson.Decoder) error {
	if d.Kind() == strictjson.String {
		t.on = true
		return d.Decode(&t.effort)
	}
	return d.Decode(&t.on)
}

// chatRequest is the body of POST /api/chat.
type chatRequest struct {
	common
	Messages []message `json:"messages"`
	Tools    []tool    `json:"tools"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
	// Thinking is that of an answer that is sent back.
	Thinking *string `json:"thinking"`

	ToolCalls []toolCall `json:"tool_calls"`
	// ToolName is the tool whose result this is; of calls without an id, it decides which one is answered.
	ToolName   *string `json:"tool_name"`
	ToolCallID *string `json:"tool_call_id"`

	// Refused.
	Images []strictjson.Raw `json:"images"`
}

// generateRequest is the body of POST /api/generate.
type generateRequest struct {
	common
	Prompt string `json:"prompt"`
	System string `json:"system"`
	Raw    bool   `json:"raw"`

	// Refused, unless they ask for nothing.
	Suffix   string           `json:"suffix"`
	Template string           `json:"template"`
	Context  []uint32         `json:"context"`
	Images   []strictjson.Raw `json:"images"`
}

const noImages = "the models read text only: leave it out"

// streams reports whether the answer is a stream, which it is unless the request says otherwise.
func (c *common) streams() bool { return c.Stream == nil || *c.Stream }

// name returns the model's name. Clients add latest to a name without a tag, and names here have no
// tags.
func name(model string) string { return strings.TrimSuffix(model, ":latest") }

// request returns the contract's request without its input.
func (c *common) request(x *httpapi.Exchange) (*pb.GenerateRequest, error) {
	if c.Model == "" {
		return nil, httpapi.Invalid("model", "is missing: GET /api/tags lists the models")
	}
	x.Annotate("model", c.Model)
	guided, err := c.guided()
	if err != nil {
		return nil, err
	}
	if err := translate.Refuse(
		translate.Field{Param: "logprobs", Set: c.Logprobs != nil && *c.Logprobs, Why: "POST /v1/chat/completions returns logprobs"},
		translate.Field{Param: "top_logprobs", Set: c.TopLogprobs != nil && *c.TopLogprobs != 0, Why: "POST /v1/chat/completions returns logprobs"},
	); err != nil {
		return nil, err
	}
	if err := translate.Skip(x,
		translate.Field{Param: "keep_alive", Set: c.KeepAlive != nil}, translate.Field{Param: "truncate", Set: c.Truncate != nil},
		translate.Field{Param: "shift", Set: c.Shift != nil},
	); err != nil {
		return nil, err
	}
	in := &pb.GenerateRequest{RequestId: &x.ID, Model: name(c.Model), Guided: guided}
	return in, c.Options.apply(x, in)
}

// guided returns the contract's constraint: of any JSON object, or of a schema.
func (c *common) guided() (*pb.Guided, error) {
	switch text := string(c.Format); {
	case text == "" || text == `""` || text == "null":
		return nil, nil
	case text == `"json"`:
		return translate.JSON(translate.AnyObject), nil
	case text[0] == '{':
		return translate.JSON(text), nil
	}
	return nil, httpapi.Invalid("format", "must be \"json\" or a JSON schema")
}

// conversation returns the contract's input of a chat.
func (c *common) conversation(messages []*pb.ChatMessage) *pb.GenerateRequest_Chat {
	chat := &pb.Chat{Messages: messages}
	if c.Think != nil {
		// A template that does not read the variables renders as without them.
		chat.TemplateKwargs = &structpb.Struct{Fields: map[string]*structpb.Value{"enable_thinking": structpb.NewBoolValue(c.Think.on)}}
		if c.Think.effort != "" {
			chat.TemplateKwargs.Fields["reasoning_effort"] = structpb.NewStringValue(c.Think.effort)
		}
	}
	return &pb.GenerateRequest_Chat{Chat: chat}
}

// request returns the contract's request. It has no input if the client only loads the model.
func (r *chatRequest) request(x *httpapi.Exchange) (*pb.GenerateRequest, error) {
	in, err := r.common.request(x)
	if err != nil || len(r.Messages) == 0 {
		return in, err
	}
	var messages []*pb.ChatMessage
	var calls history
	for i, m := range r.Messages {
		path := "messages[" + strconv.Itoa(i) + "]"
		if m.Role == "" {
			return nil, httpapi.Invalid(path+".role", "is missing")
		}
		if err := translate.Refuse(
			translate.Field{Param: path + ".images", Set: len(m.Images) > 0, Why: noImages},
		); err != nil {
			return nil, err
		}
		out := &pb.ChatMessage{Role: m.Role, Content: m.Content, Reasoning: m.Thinking, ToolCallId: m.ToolCallID}
		if len(m.ToolCalls) > 0 {
			if out.ToolCalls, err = calls.calls(m.ToolCalls, path+".tool_calls"); err != nil {
				return nil, err
			}
		}
		if m.Role == "tool" && m.ToolCallID == nil {
			out.ToolCallId = calls.answered(m.ToolName)
		}
		messages = append(messages, out)
	}
	chat := r.conversation(messages)
	if chat.Chat.Tools, err = tools(r.Tools); err != nil {
		return nil, err
	}
	in.Input = chat
	translate.WantParts(in)
	return in, nil
}

// request returns the contract's request, whose input may be missing: it is loaded only, or raw.
func (r *generateRequest) request(x *httpapi.Exchange) (*pb.GenerateRequest, error) {
	if err := translate.Refuse(
		translate.Field{Param: "system", Set: r.Raw && r.System != "", Why: "raw is true, so no template has a place for it: leave one of them out"},
		translate.Field{Param: "suffix", Set: r.Suffix != "", Why: "the models do not fill in the middle: leave it out"},
		translate.Field{Param: "template", Set: r.Template != "", Why: "the template is that of the model: leave it out"},
		translate.Field{Param: "context", Set: len(r.Context) > 0, Why: "send the conversation to POST /api/chat"},
		translate.Field{Param: "images", Set: len(r.Images) > 0, Why: noImages},
	); err != nil {
		return nil, err
	}
	in, err := r.common.request(x)
	if err != nil || r.Prompt == "" || r.Raw {
		return in, err
	}
	var messages []*pb.ChatMessage
	if r.System != "" {
		messages = append(messages, &pb.ChatMessage{Role: "system", Content: r.System})
	}
	in.Input = r.conversation(append(messages, &pb.ChatMessage{Role: "user", Content: r.Prompt}))
	translate.WantParts(in)
	return in, nil
}

// chat answers POST /api/chat.
func (d *Dialect) chat(x *httpapi.Exchange) error {
	begin := d.now()
	var r chatRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	return d.answer(x, in, &reply{begin: begin, now: d.now, request: &r.common, chat: true})
}

// generate answers POST /api/generate.
func (d *Dialect) generate(x *httpapi.Exchange) error {
	begin := d.now()
	var r generateRequest
	if err := x.Decode(&r, nil); err != nil {
		return err
	}
	in, err := r.request(x)
	if err != nil {
		return err
	}
	if r.Raw && r.Prompt != "" {
		// Raw prompts are templates that the client has rendered, so the names of special tokens in them
		// count. Those of a prompt as text would not.
		ids, err := d.client.Tokenize(x.Context(), &pb.TokenizeRequest{
			Model: in.GetModel(), Input: &pb.TokenizeRequest_Text{Text: r.Prompt}, ParseSpecial: proto.Bool(true),
		})
		if err != nil {
			return paths.Failure(err)
		}
		in.Input = &pb.GenerateRequest_TokenIds{TokenIds: &pb.TokenIds{Ids: ids.GetTokenIds()}}
	}
	return d.answer(x, in, &reply{begin: begin, now: d.now, request: &r.common})
}

var paths = translate.Paths{Fields: []map[string]string{fields}}
