package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/services/gateway/internal/strictjson"
	"github.com/millrace/millrace/services/internal/reason"
)

// request has one field of each kind.
type request struct {
	Common
	Text   string             `json:"text"`
	Flag   bool               `json:"flag"`
	Whole  *int64             `json:"whole"`
	Small  int32              `json:"small"`
	Count  *uint32            `json:"count"`
	Share  *float64           `json:"share"`
	IDs    []uint32           `json:"ids"`
	Bias   map[string]float64 `json:"bias"`
	Parts  []part             `json:"parts"`
	Either either             `json:"either"`
	Schema strictjson.Raw     `json:"schema"`
	hidden int
}

// Common is embedded.
type Common struct {
	Model string `json:"model"`
}

type part struct {
	Type string `json:"type"`
	Next *part  `json:"next"`
}

// either is a string or a list of strings.
type either []string

func (e *either) DecodeJSON(d *strictjson.Decoder) error {
	if d.Kind() == strictjson.String {
		*e = make([]string, 1)
		return d.Decode(&(*e)[0])
	}
	return d.Decode((*[]string)(e))
}

func TestDecodeFillsEveryKind(t *testing.T) {
	var r request
	require.NoError(t, strictjson.Decode([]byte(`{"model":"m","text":"a\n\u00e9\ud83d\ude00\/","flag":true,"whole":-5.0,"small":1e3,"count":4294967295,
		"share":0.5,"ids":[1,2],"bias":{"7":-1,"x y":2e1},"parts":[{"type":"a","next":{"type":"b","next":null}}],"either":"s","schema":{"a":[1]}}`), &r, nil))
	require.Equal(t, "m", r.Model)
	require.Equal(t, "a\né😀/", r.Text)
	require.True(t, r.Flag)
	require.EqualValues(t, -5, *r.Whole)
	require.EqualValues(t, 1000, r.Small)
	require.EqualValues(t, 4294967295, *r.Count)
	require.InDelta(t, 0.5, *r.Share, 0)
	require.Equal(t, []uint32{1, 2}, r.IDs)
	require.Equal(t, map[string]float64{"7": -1, "x y": 20}, r.Bias)
	require.Equal(t, []part{{Type: "a", Next: &part{Type: "b"}}}, r.Parts)
	require.Equal(t, either{"s"}, r.Either)
	require.JSONEq(t, `{"a":[1]}`, string(r.Schema))
	require.Zero(t, r.hidden)
}

func TestNullIsUnset(t *testing.T) {
	var r request
	require.NoError(t, strictjson.Decode([]byte(` {"text":null,"flag":null,"whole":null,"ids":null,"bias":null,"parts":null,"either":null,"schema":null} `), &r, nil))
	require.Equal(t, request{}, r)
	require.NoError(t, strictjson.Decode([]byte(`{"ids":[],"either":[]}`), &r, nil))
	require.NotNil(t, r.IDs, "an empty list is not unset")
	require.NotNil(t, r.Either)
}

func TestErrorsHaveThePath(t *testing.T) {
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	for body, want := range map[string]strictjson.Error{
		`{"other":1}`:                             {Path: "other", Reason: reason.UnknownField, Message: "is not a field"},
		`{"parts":[{},{"x":{}}]}`:                 {Path: "parts[1].x", Reason: reason.UnknownField},
		`{"parts":[{"next":{"next":{"y z":1}}}]}`: {Path: `parts[0].next.next["y z"]`, Reason: reason.UnknownField},
		`{"Text":"a"}`:                            {Path: "Text", Reason: reason.UnknownField},
		`{"hidden":1}`:                            {Path: "hidden", Reason: reason.UnknownField},
		`{"text":"a","text":"b"}`:                 {Path: "text", Reason: reason.InvalidArgument, Message: "occurs twice"},
		`{"bias":{"1":1,"1":2}}`:                  {Path: "bias.1", Reason: reason.InvalidArgument, Message: "occurs twice"},
		`{"schema":{"a":1,"a":2}}`:                {Path: "schema.a", Reason: reason.InvalidArgument, Message: "occurs twice"},
		`{"schema":` + deep + `}`:                 {Path: "schema" + strings.Repeat("[0]", 63), Reason: reason.InvalidArgument, Message: "nested too deeply"},
		`{"text":1}`:                              {Path: "text", Reason: reason.InvalidArgument, Message: "is a number: must be a string"},
		`{"either":[1]}`:                          {Path: "either[0]", Reason: reason.InvalidArgument, Message: "is a number: must be a string"},
		`{"either":["a",null]}`:                   {Path: "either[1]", Reason: reason.InvalidArgument, Message: "is null: must be a string"},
		`{"flag":"true"}`:                         {Path: "flag", Reason: reason.InvalidArgument, Message: "is a string: must be a boolean"},
		`{"whole":1.5}`:                           {Path: "whole", Reason: reason.InvalidArgument, Message: "is 1.5: must be an integer"},
		`{"whole":9223372036854775808}`:           {Path: "whole", Reason: reason.InvalidArgument, Message: "must be an integer of at most 64 bits"},
		`{"small":3000000000}`:                    {Path: "small", Reason: reason.InvalidArgument, Message: "of at most 32 bits"},
		`{"count":-1}`:                            {Path: "count", Reason: reason.InvalidArgument, Message: "must be an integer in [0, 4294967295]"},
		`{"ids":[1,4294967296]}`:                  {Path: "ids[1]", Reason: reason.InvalidArgument, Message: "must be an integer in [0, 4294967295]"},
		`{"share":1e999}`:                         {Path: "share", Reason: reason.InvalidArgument, Message: "too large"},
		`{"parts":{}}`:                            {Path: "parts", Reason: reason.InvalidArgument, Message: "is an object: must be an array"},
		`[]`:                                      {Reason: reason.InvalidArgument, Message: "the body is an array"},
		``:                                        {Reason: reason.MalformedMessage, Message: "a JSON object is expected"},
		`{`:                                       {Reason: reason.MalformedMessage, Message: "name of a field"},
		`{"text"}`:                                {Reason: reason.MalformedMessage, Message: "colon"},
		`{"text":}`:                               {Reason: reason.MalformedMessage, Message: "a string is expected"},
		`{"text":"a",}`:                           {Reason: reason.MalformedMessage, Message: "after a comma"},
		`{"text":"a"}{}`:                          {Reason: reason.MalformedMessage, Message: "more text follows"},
		`{"text":"a" "flag":true}`:                {Reason: reason.MalformedMessage, Message: "a comma or } is expected"},
		`{"text":"\x"}`:                           {Reason: reason.MalformedMessage, Message: "escape"},
		`{"text":"\ud800"}`:                       {Reason: reason.MalformedMessage, Message: "half a surrogate pair"},
		`{"text":"\ud800\ud800"}`:                 {Reason: reason.MalformedMessage, Message: "half a surrogate pair"},
		`{"text":"\u12"}`:                         {Reason: reason.MalformedMessage, Message: "hexadecimal"},
		"{\"text\":\"\xff\"}":                     {Reason: reason.MalformedMessage, Message: "not UTF-8"},
		"{\"text\":\"\\n\xff\"}":                  {Reason: reason.MalformedMessage, Message: "not UTF-8"},
		"{\"text\":\"a\nb\"}":                     {Reason: reason.MalformedMessage, Message: "control character"},
		`{"text":"a`:                              {Reason: reason.MalformedMessage, Message: "has no end"},
		`{"whole":01}`:                            {Reason: reason.MalformedMessage, Message: "a comma or } is expected"},
		`{"whole":-}`:                             {Reason: reason.MalformedMessage, Message: "no digits"},
		`{"share":1.}`:                            {Reason: reason.MalformedMessage, Message: "after its point"},
		`{"share":1e}`:                            {Reason: reason.MalformedMessage, Message: "exponent"},
		`{"flag":tru}`:                            {Reason: reason.MalformedMessage, Message: "true is expected"},
		`{"flag":nul}`:                            {Reason: reason.MalformedMessage, Message: "null is expected"},
	} {
		var r request
		err := strictjson.Decode([]byte(body), &r, nil)
		var got *strictjson.Error
		require.ErrorAs(t, err, &got, body)
		require.Equal(t, want.Path, got.Path, body)
		require.Equal(t, want.Reason, got.Reason, body)
		require.Contains(t, got.Message, want.Message, body)
	}
}

func TestListsAreBounded(t *testing.T) {
	var r request
	many := strings.Repeat("{},", strictjson.MaxElements)
	require.NoError(t, strictjson.Decode([]byte(`{"parts":[`+many[:len(many)-1]+`]}`), &r, nil))
	require.ErrorContains(t, strictjson.Decode([]byte(`{"parts":[`+many+`{}]}`), &r, nil), "parts[16384] is one element too many")
	numbers := strings.Repeat("1,", strictjson.MaxElements)
	require.NoError(t, strictjson.Decode([]byte(`{"ids":[`+numbers+`1]}`), &r, nil))
}

func TestUnknownFieldsMayBeSkipped(t *testing.T) {
	var r request
	var asked []string
	skip := func(path string) bool { asked = append(asked, path); return path != "bad" }
	require.NoError(t, strictjson.Decode([]byte(`{"extra":{"a":[1,true,null,"x"]},"text":"t","parts":[{"more":false}]}`), &r, skip))
	require.Equal(t, []string{"extra", "parts[0].more"}, asked)
	require.Equal(t, "t", r.Text)
	require.ErrorContains(t, strictjson.Decode([]byte(`{"bad":1}`), &r, skip), "bad is not a field")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"text":"a","ids":[1],"bias":{"1":2},"parts":[{"next":{}}],"either":["a"],"schema":{"a":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r request
		err := strictjson.Decode(data, &r, nil)
		if err == nil && !json.Valid(data) {
			t.Fatal("it accepts what is not JSON")
		}
		var generic map[string]any
		if err == nil && json.Unmarshal(data, &generic) != nil {
			t.Fatal("it accepts what is not an object")
		}
	})
}
