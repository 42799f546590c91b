package console_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/api"
	"github.com/pmh-bridge/bridge/internal/status"
)

// fill gives all fields of a value something that is not left out of its JSON. Texts are
// moments, since many of them have to be.
func fill(v reflect.Value) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = at
		return
	case *event.Stamp:
		*p = event.StampFromNanos(at.UnixNano())
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString(at.Format(time.RFC3339))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	}
}

// The OpenAPI document has each field that an object of the API may have, and no other: also
// those that few objects have.
func TestAPIObjects(t *testing.T) {
	t.Parallel()
	schemas := description(t).Components.Schemas
	for name, object := range map[string]any{
		"Status": new(status.Status), "Set": new(status.Set), "SourceState": new(status.Source), "Source": &api.Source{Source: new(status.Source)}, "Harvest": new(status.Harvest),
		"HarvestRow": new(status.HarvestRow), "Peer": new(status.Peer), "Event": new(api.Event), "Record": new(api.Record), "RecordLine": new(api.RecordLine),
		"Held": new(api.Held), "Quarantined": new(api.Quarantined), "Submission": new(api.Submission), "Act": new(api.Act), "Verdict": new(api.Verdict),
	} {
		for _, err := range all(schemas[name].Value.VisitJSON(decoded(t, object), openapi3.MultiErrors())) {
			var wrong *openapi3.SchemaError
			if errors.As(err, &wrong) && wrong.SchemaField == "required" {
				t.Errorf("%s: may lack at /%s: %s", name, strings.Join(wrong.JSONPointer(), "/"), wrong.Reason)
			}
		}
		fill(reflect.ValueOf(object).Elem())
		value := decoded(t, object)
		for _, err := range all(schemas[name].Value.VisitJSON(value, openapi3.MultiErrors())) {
			var wrong *openapi3.SchemaError
			if !errors.As(err, &wrong) {
				t.Errorf("%s: %v", name, err)
			} else if wrong.SchemaField != "enum" { // our texts are moments
				t.Errorf("%s: at /%s %s", name, strings.Join(wrong.JSONPointer(), "/"), wrong.Reason)
			}
		}
		for _, path := range lacks(schemas[name].Value, value, "") {
			t.Errorf("%s has no field %s", name, path)
		}
	}
}

// decoded returns an object as a client reads it.
func decoded(t testing.TB, object any) (value any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// all are the errors of which one is made.
func all(err error) (out []error) {
	var several openapi3.MultiError
	if !errors.As(err, &several) {
		return slices.DeleteFunc([]error{err}, func(err error) bool { return err == nil })
	}
	for _, err := range several {
		out = append(out, all(err)...)
	}
	return out
}

// lacks returns the described fields that a value does not have.
func lacks(schema *openapi3.Schema, value any, path string) (out []string) {
	if list, ok := value.([]any); ok && len(list) > 0 && schema.Items != nil {
		return lacks(schema.Items.Value, list[0], path+"[]")
	}
	object, _ := value.(map[string]any)
	for name, property := range schema.Properties {
		inside, ok := object[name]
		if !ok {
			out = append(out, path+"."+name)
			continue
		}
		out = append(out, lacks(property.Value, inside, path+"."+name)...)
	}
	return out
}
