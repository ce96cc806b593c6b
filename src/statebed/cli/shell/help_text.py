"""The text of `.help`."""

HELP = """\
Statements end with a semicolon and may take several lines.

  CREATE TABLE t (columns, WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (connector = '...', ...);
  CREATE VIEW v AS SELECT ...;         CREATE FUNCTION f AS 'module:function';
  SELECT ... FROM t [LIMIT n];         rows of a stream, live until Ctrl-C or the limit
  SELECT ... FROM job.operator.table;  state of a job in an attached location
  INSERT INTO t SELECT ...;            start a job in the background
  EXECUTE STATEMENT SET BEGIN INSERT ...; INSERT ...; END;    several INSERTs as one job
  ATTACH 'folder or URL';              make the state of its jobs selectable; DETACH '...'
  SHOW TABLES | VIEWS | FUNCTIONS | JOBS | SETTINGS | STATES [LIKE 'b*'];
  DESCRIBE t;    EXPLAIN SELECT ...;    DROP VIEW v;
  STOP JOB name [WITH DRAIN];
  SET 'name' = 'value';                a setting of later jobs; RESET 'name'

  .help          this text              .read FILE     run the statements of a file
  .tables        SHOW TABLES            .mode table | csv | json
  .jobs          SHOW JOBS              .quit          end the shell and its jobs; also Ctrl-D
  .epoch 12      state as of an epoch that is still retained; .epoch newest ends it
  .results on    finished results of aggregates and top-n instead of their stored columns

Ctrl-C ends the running statement, or clears the line. Tab completes."""
