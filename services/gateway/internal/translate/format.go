package translate

import (
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/gateway/internal/httpapi"
	"github.com/millrace/millrace/services/gateway/internal/strictjson"
)

// SchemaField is the contract's field of a format's schema, for Paths.
const SchemaField = "guided.json_schema"

// AnyObject is the schema of every JSON object.
const AnyObject = `{"type":"object"}`

// Format is the shape of an answer that a request asks for. Name and Description are hints for
// models and are not used.
type Format struct {
	Type        string         `json:"type"` // text, json_object or json_schema
	Name        *string        `json:"name"`
	Description *string        `json:"description"`
	Schema      strictjson.Raw `json:"schema"`
	Strict      *bool          `json:"strict"`
}

// Guided returns the contract's constraint, nil for text. path is that of the field with the type,
// schemaPath that of the schema. Without strict, keywords of the schema that cannot be honoured are
// ignored, and named in the field millrace of the answer.
func (f *Format) Guided(path, schemaPath string) (*pb.Guided, error) {
	switch f.Type {
	case "text":
		return nil, nil
	case "json_object":
		return JSON(AnyObject), nil
	case "json_schema":
		if f.Schema == nil {
			return nil, httpapi.Invalid(schemaPath, "is missing: send a JSON schema")
		}
		guided := JSON(string(f.Schema))
		lenient := f.Strict == nil || !*f.Strict
		guided.Lenient = &lenient
		return guided, nil
	}
	return nil, httpapi.Unsupported(path, "is %.32q, which is not supported: send text, json_object or json_schema", f.Type)
}

// JSON returns the constraint to values of a JSON schema.
func JSON(schema string) *pb.Guided {
	return &pb.Guided{Constraint: &pb.Guided_JsonSchema{JsonSchema: schema}}
}
